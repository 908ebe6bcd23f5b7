"""The shared engine and its life: settings that fit, start, guard, release, and who else has one on this machine."""
