"""For all tests: a property is judged by whether it holds, never by how long an example took on a busy machine."""

from hypothesis import settings

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
