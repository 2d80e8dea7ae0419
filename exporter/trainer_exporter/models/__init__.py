"""What the files that a model is saved with say of its shape: how much a token of its training computes."""

from trainer_exporter.models.files import Model, ModelFiles

__all__ = ["Model", "ModelFiles"]
