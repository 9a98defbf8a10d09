"""The mechanism driver of ML2: binds a port to the socket that QEMU will create for it.

It runs in Neutron's server and speaks to no host: what it must know of one is in the reports of the
agent there. Nova passes such a port to os-vif's plugin `noop`, so that only the agent plugs it.
"""

import os

from neutron.plugins.ml2.drivers import mech_agent
from neutron_lib import constants
from neutron_lib.api.definitions import portbindings

from ringway_neutron import AGENT_TYPE, SOCKET_DIR, vif_name


class RingwayMechanismDriver(mech_agent.SimpleAgentMechanismDriverBase):
    """Binds ports of machines on hosts where the agent is alive."""

    def __init__(self):
        # Security groups are not ringway's: see docs/openstack.md.
        super().__init__(
            AGENT_TYPE, portbindings.VIF_TYPE_VHOST_USER, {portbindings.CAP_PORT_FILTER: False}
        )

    @property
    def connectivity(self):
        return portbindings.CONNECTIVITY_L2

    def get_allowed_network_types(self, agent=None):
        return agent["configurations"].get("network_types", [])

    def get_mappings(self, agent):
        return agent["configurations"].get("physical_networks", [])

    def check_segment_for_agent(self, segment, agent):
        # Of a host with OVN, OVN knows which physical networks it reaches.
        if agent["configurations"].get("integration_bridge"):
            return segment["network_type"] in self.get_allowed_network_types(agent)
        return super().check_segment_for_agent(segment, agent)

    def bind_port(self, context):
        # Ports of Neutron's own services are network devices, which others plug.
        owner = context.current["device_owner"]
        if owner.startswith(constants.DEVICE_OWNER_COMPUTE_PREFIX):
            super().bind_port(context)

    def get_vif_details(self, context, agent, segment):
        folder = agent["configurations"].get("vhostuser_socket_dir", SOCKET_DIR)
        return {
            **self.vif_details,
            # The mode is QEMU's: it creates the socket, so a restarted backend connects again.
            portbindings.VHOST_USER_MODE: portbindings.VHOST_USER_MODE_SERVER,
            portbindings.VHOST_USER_SOCKET: os.path.join(folder, vif_name(context.current["id"])),
        }
