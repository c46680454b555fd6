"""What runs inside twins, each file for itself: installed as programs in /usr/lib/twin/driver or as files of packages."""
