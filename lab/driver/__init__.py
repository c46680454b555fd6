"""The NVIDIA driver as a twin has it: packages, dkms, kernel modules and user land; and what can go wrong with them."""
