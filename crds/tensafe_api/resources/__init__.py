"""The resources of the group tensafe.io, as pydantic models: `job` is the face, the other modules are its blocks."""
