#!/usr/bin/env python3
"""Checks that every folder includes only folders on lower floors (docs/architecture.md)."""
import pathlib
import re
import sys

FLOORS = {"base": 1, "format24": 2, "ops": 2, "files": 2, "cache": 3, "select": 4, "attention": 4,
          "model": 5, "engine": 6, "train": 7, "eval": 7}
APPS = 8
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
SOURCES = {".h", ".cpp", ".cuh", ".cu"}


def folder_of(path):
    """'rarefy/cache/pool.h' -> 'cache', 'apps/main.cpp' -> 'apps', else None."""
    parts = pathlib.PurePosixPath(path).parts
    if parts[0] == "rarefy" and len(parts) > 2:
        return parts[1]
    return "apps" if parts[0] == "apps" else None


def floor_of(folder):
    return APPS if folder == "apps" else FLOORS.get(folder)


def is_kernel(path):
    """Device code of attention/ and select/, which may see of the cache only its view."""
    p = pathlib.PurePosixPath(path)
    return p.suffix in {".cu", ".cuh"} or p.parent.name in {"sm80", "sm90", "instances"}


def violation(path, include):
    """Why `path` may not include `include`, or None."""
    target = folder_of(include)
    source = folder_of(path)
    if target is None:
        return None
    if floor_of(target) is None:
        return f"folder rarefy/{target} has no floor"
    if source == target:
        return None
    if floor_of(target) >= floor_of(source):
        return f"{source} (floor {floor_of(source)}) includes {target} (floor {floor_of(target)})"
    if source in {"attention", "select"} and target == "cache" and is_kernel(path) and include != "rarefy/cache/kv_view.h":
        return "kernels include of cache/ only kv_view.h"
    return None


def check(root):
    found = []
    for top in ("rarefy", "apps"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            path = file.relative_to(root).as_posix()
            if floor_of(folder_of(path)) is None:
                found.append(f"{path}: this folder has no floor")
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                reason = violation(path, match.group(1)) if match else None
                if reason:
                    found.append(f"{path}:{number}: {reason}")
    return found


if __name__ == "__main__":
    violations = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(violations) if violations else "floors: ok")
    sys.exit(1 if violations else 0)
