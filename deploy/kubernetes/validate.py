"""Reads every object of prometheus-operator in manifests/ with models made from the operator's own schemas; says what they do not know.

The models let unknown keys pass, so what they give back is compared with what went in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).resolve().parent / "manifests"


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """The paths of what went in and did not come back."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (value, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(value, other, f"{path}[{number}]")
    elif given != kept:
        yield f"{path.lstrip('.')}: {given!r} became {kept!r}"


def complaints(document: dict[str, Any]) -> list[str]:
    """What is wrong with an object."""
    from cloudcoil.models.prometheus_operator import v1, v1alpha1
    from pydantic import ValidationError

    model = getattr(v1alpha1 if document["apiVersion"].endswith("/v1alpha1") else v1, document["kind"])
    try:
        return list(lost(document, model.model_validate(document).model_dump(by_alias=True, exclude_none=True, mode="json")))
    except ValidationError as error:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]


def main() -> int:
    count = failed = 0
    for path in sorted(MANIFESTS.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document and document["apiVersion"].startswith("monitoring.coreos.com/"):
                count += 1
                for complaint in complaints(document):
                    failed += 1
                    sys.stdout.write(f"{path.name}: {document['kind']} {document['metadata']['name']}: {complaint}\n")
    sys.stdout.write(f"{count} objects of prometheus-operator, {failed} complaints\n")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main())
