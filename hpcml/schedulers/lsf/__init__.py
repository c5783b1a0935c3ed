"""IBM Spectrum LSF by its own commands: made from its documentation and from public code, never run with a real one."""
