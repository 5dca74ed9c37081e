"""Checks a Perfetto trace against Perfetto's own protocol: python check_perfetto.py TRACE

Needs the package `perfetto`, which has the published messages. Every packet decodes without unknown
fields; tracks have distinct uuids, and parents that are there; names are interned before they are used;
times do not go back within a sequence; slices begin and end in pairs on each track; counters belong to
counter tracks, and nothing else does.
"""

import sys
from collections import Counter, defaultdict

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


def unknown(message, path):
    """Fails if the message, or one in it, has a field that the protocol does not."""
    fields = [field.field_number for field in UnknownFieldSet(message)]
    assert not fields, f"{path}: unknown fields {fields}"
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
            for part in value if repeated else [value]:
                unknown(part, f"{path}.{field.name}")


trace = Trace()
with open(sys.argv[1], "rb") as file:
    trace.ParseFromString(file.read())
tracks, names, last, open_slices, kinds = {}, defaultdict(dict), {}, Counter(), Counter()
for number, packet in enumerate(trace.packet):
    unknown(packet, f"packet {number}")
    sequence = packet.trusted_packet_sequence_id
    assert sequence > 0, f"packet {number}: no sequence"
    if packet.sequence_flags & 1:
        names[sequence] = {}
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid not in tracks, f"packet {number}: track {track.uuid} twice"
        assert not track.parent_uuid or track.parent_uuid in tracks, f"packet {number}: no parent {track.parent_uuid}"
        tracks[track.uuid] = track
    for table in ("event_names", "debug_annotation_names", "debug_annotation_string_values"):
        for entry in getattr(packet.interned_data, table):
            assert (table, entry.iid) not in names[sequence], f"packet {number}: {table} {entry.iid} twice"
            names[sequence][table, entry.iid] = True
    if not packet.HasField("track_event"):
        continue
    event = packet.track_event
    kinds[TrackEvent.Type.Name(event.type)] += 1
    assert packet.timestamp >= last.get(sequence, 0), f"packet {number}: time goes back"
    last[sequence] = packet.timestamp
    assert event.track_uuid in tracks, f"packet {number}: no track {event.track_uuid}"
    if event.name_iid:
        assert packet.sequence_flags & 2 and ("event_names", event.name_iid) in names[sequence], f"packet {number}: name"
    for note in event.debug_annotations:
        assert ("debug_annotation_names", note.name_iid) in names[sequence], f"packet {number}: annotation"
        if note.HasField("string_value_iid"):
            assert ("debug_annotation_string_values", note.string_value_iid) in names[sequence], f"packet {number}: text"
    is_counter = tracks[event.track_uuid].HasField("counter")
    assert is_counter == (event.type == TrackEvent.TYPE_COUNTER), f"packet {number}: kind of track"
    if event.type == TrackEvent.TYPE_SLICE_BEGIN:
        open_slices[event.track_uuid] += 1
        assert event.name_iid or event.name, f"packet {number}: slice without a name"
    if event.type == TrackEvent.TYPE_SLICE_END:
        open_slices[event.track_uuid] -= 1
        assert open_slices[event.track_uuid] >= 0, f"packet {number}: ends what has not begun"
assert not any(open_slices.values()), "some slices do not end"
print(f"{len(trace.packet)} packets, {len(tracks)} tracks, {dict(kinds)}")
