"""Ports of OpenStack Neutron as vifs of ringway, behind vhost-user sockets that QEMU creates."""

# Neutron knows the agent by these, in `openstack network agent list`.
AGENT_TYPE = "Ringway agent"
AGENT_BINARY = "neutron-ringway-agent"
# QEMU creates its sockets here. The user that libvirt runs it as must own the directory.
SOCKET_DIR = "/run/ringway-vms"


def vif_name(port_id):
    """The vif of a port, and its socket: as Neutron's driver for Open vSwitch names them."""
    return ("vhu" + port_id)[:14]
