"""What goes wrong with servers."""


class ServerError(RuntimeError):
    """A server did not start, or not do what it was told; or it is required and there is none."""


__all__ = ["ServerError"]
