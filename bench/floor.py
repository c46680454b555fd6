"""The floor under a deploy with nothing to do: connect once with paramiko, run one script as root, and be gone.

Arguments: address, port, user, key file, known_hosts file. The script comes on standard input.
"""

import shlex
import sys

import paramiko

address, port, user, key, known_hosts = sys.argv[1:]
client = paramiko.SSHClient()
client.load_host_keys(known_hosts)
client.set_missing_host_key_policy(paramiko.RejectPolicy())
client.connect(address, int(port), user, key_filename=key, look_for_keys=False, allow_agent=False)
out = client.exec_command(f"sudo -n -- sh -c {shlex.quote(sys.stdin.read())}")[1]
out.read()
sys.exit(out.channel.recv_exit_status())
