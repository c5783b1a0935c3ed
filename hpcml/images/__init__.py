"""Images: their definitions, the cache they are kept in, and the programs that build and start them.

`definition` renders a definition file from the configuration, `registry` asks for the digest of its base image, `build`
has Apptainer or Singularity build it into the `cache`, `inventory` lists, removes, exports and imports what is there,
and `command` makes the command line that runs a program inside.
"""
