"""Describes a prepared dataset in Croissant, the metadata format of dataset search and loaders.

Source: Croissant 1.0 (https://docs.mlcommons.org/croissant/docs/croissant-spec.html).
"""

import json
from collections.abc import Sequence
from typing import Any

from infra.store.store import Artifact
from pipelines.records.dataset import Dataset
from pipelines.records.licence import SEVERAL, LicenceCount

CROISSANT_VERSION = "http://mlcommons.org/croissant/1.0"
_TFRECORD = "application/x-tfrecord"

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The specification's context, word for word: readers warn about any other."""

_FEATURES = {
    "id": ("sc:Text", False, "Stable name of the record."),
    "image": ("sc:ImageObject", True, "Encoded images: one, a pair, or frames of a video."),
    "prefix": ("sc:Text", False, "The text that a model reads."),
    "suffix": ("sc:Text", True, "Texts that it may write."),
    "task": ("sc:Text", False, "Task, or benchmark."),
    "lang": ("sc:Text", False, "Language of the suffixes (BCP 47)."),
    "source": ("sc:Text", False, "File that the pixels come from."),
    "source_sha256": ("sc:Text", False, "Digest of that file."),
    "answer": ("sc:Text", True, "Accepted answers, for metrics."),
    "mask_rle": ("sc:Text", True, "A COCO run-length mask for each <mask> of the suffixes."),
}
"""Feature of a record's `tf.train.Example` -> (type, whether it is repeated, description)."""

_LICENCE_FEATURES = {
    "licence": ("sc:Text", False, "Terms of the record, if stated."),
    "licence_holder": ("sc:Text", False, "Whose work it is, if stated."),
    "licence_address": ("sc:Text", False, "Where it is published, if stated."),
}
"""Features that records which state them have besides."""


def croissant_description(artifact: Artifact) -> str:
    """Returns the description of a prepared dataset, as JSON-LD.

    Each shard is listed with its address in the store, its size and its digest.

    Args:
      artifact: a dataset, screened or not.
    """
    manifest = artifact.manifest
    dataset = Dataset(artifact.uri)
    licences = dataset.info.licence_counts
    stated = dataset.info.licences
    shards = {name: part.shards for name, part in sorted(dataset.info.parts.items())}
    # Bytes first, then meaning: every shard is a FileObject, the shards of a part are a FileSet,
    # and a part's records are a RecordSet that reads from its FileSet.
    #
    #     RecordSet train -> FileSet train -> FileObject of each shard
    #
    # Addresses are those of the store, with digests, so that a loader can fetch and check them.
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CROISSANT_VERSION,
        "name": manifest.name,
        "description": f"{dataset.info.num_records} records of {', '.join(shards)}, with images of "
        f"{dataset.info.image_px} px; {dataset.info.num_rejected} inputs were rejected. "
        f"Licences: {', '.join(f'{count.title} ({count.records})' for count in licences)}.",
        "datePublished": manifest.started,
        "identifier": manifest.key,
        "version": f"1.0.0+{manifest.content}",
        "url": _one_address(stated) or f"{artifact.files.uri}/{artifact.folder}",
        **_croissant_licences(stated),
        "isBasedOn": [entry.key for _, entry in sorted(manifest.inputs.items())],
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": shard,
                "name": shard,
                "contentUrl": f"{artifact.files.uri}/{artifact.folder}/{shard}",
                "contentSize": f"{manifest.files[shard].size} B",
                "encodingFormat": _TFRECORD,
                "sha256": manifest.files[shard].sha256,
            }
            for part in shards.values()
            for shard in part
        ]
        + [
            {
                "@type": "cr:FileSet",
                "@id": name,
                "name": name,
                "containedIn": [{"@id": shard} for shard in part],
                "encodingFormat": _TFRECORD,
                "includes": "*.tfrecord",
            }
            for name, part in shards.items()
        ],
        "recordSet": [_record_set(name, bool(stated)) for name in shards],
    }
    return json.dumps(described, indent=1, ensure_ascii=False)


def _one_address(licences: Sequence[LicenceCount]) -> str:
    """Returns the address where all records are published; "" if there is none, or several."""
    addresses = {count.address for count in licences}
    return addresses.pop() if len(addresses) == 1 and addresses != {SEVERAL} else ""


def _croissant_licences(licences: Sequence[LicenceCount]) -> dict[str, Any]:
    """Returns the licences and holders that are stated, as schema.org has them."""
    holders = {(c.holder, c.address) for c in licences if c.holder not in ("", SEVERAL)}
    terms: dict[str, Any] = {}
    if names := [count.licence for count in licences if count.licence]:
        terms["license"] = names
    if holders:
        terms["creator"] = [
            {"@type": "sc:Organization", "name": holder}
            | ({"url": address} if address not in ("", SEVERAL) else {})
            for holder, address in sorted(holders)
        ]
    return terms


def _record_set(part: str, has_licences: bool) -> dict[str, Any]:
    # The fields are those of `tf.train.Example`: every part has the same ones, under its own ids.
    features = _FEATURES | _LICENCE_FEATURES if has_licences else _FEATURES
    return {
        "@type": "cr:RecordSet",
        "@id": f"{part}/records",
        "name": f"{part} records",
        "key": {"@id": f"{part}/id"},
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{part}/{feature}",
                "name": feature,
                "description": what,
                "dataType": kind,
                "repeated": several,
                "source": {"fileSet": {"@id": part}, "extract": {"column": feature}},
            }
            for feature, (kind, several, what) in features.items()
        ],
    }
