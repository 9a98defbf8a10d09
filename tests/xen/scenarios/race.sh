# Kernel's and ringway's backend in turns, in one boot, with the same guest and bridge.
# sets: race
# limit: 7200
skip "not written yet"
