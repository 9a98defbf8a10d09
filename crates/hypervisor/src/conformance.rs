//! One suite for every implementation of the hypervisor port.
