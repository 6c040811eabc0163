"""How work is split over processes: the one owner of the mesh."""

from .mesh import Layout, Mesh

__all__ = ["Layout", "Mesh"]
