# From records to frames, and their stamping. The twin of prepare.py and of `stamp`, `rebase`.

cdef object UNSET = msgspec.UNSET
cdef object encode_fast = encode
cdef object Raw = msgspec.Raw

cdef Py_ssize_t RECORD_BYTES = limits.RECORD_BYTES
cdef Py_ssize_t META_BYTES = limits.META_BYTES
cdef Py_ssize_t META_KEYS = limits.META_KEYS
cdef Py_ssize_t TAG_BYTES = limits.TAG_BYTES
cdef Py_ssize_t NODE_BYTES = limits.NODE_BYTES
cdef Py_ssize_t KEY_BYTES = limits.KEY_BYTES
cdef Py_ssize_t JSON_DEPTH = limits.JSON_DEPTH
cdef Py_ssize_t FIRST_ROOM = 1024 * 1024


cdef struct Text:
    # A part of a record, pointing into the Python object it came from.
    const uint8_t* data
    Py_ssize_t size
    Py_ssize_t spaces  # bytes that compaction removes


cdef object record_error(object index, object record, object default_node):
    """Raise what the Python twin says of the fields of this record."""
    from topics.format import prepare as twin

    twin.check_fields(index, record, default_node)
    raise InvalidRecord(index, "it breaks a rule")


cdef int text_part(object value, Py_ssize_t limit, Text* out) except -1:
    """1 and the UTF-8 of a str within its limit, else 0."""
    if not isinstance(value, str):
        return 0
    try:
        out.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(value, &out.size)
    except UnicodeEncodeError:
        return 0
    return out.size <= limit


cdef bytes value_text(Py_ssize_t index, str name, object value):
    """The JSON of a value. Where it fails or holds a null, which may be a NaN, the Python twin decides."""
    cdef bytes text
    try:
        text = encode_fast(value)
        if b"null" not in text:
            return text
    except Exception:
        pass
    try:
        return encode_value(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRecord(index, f"{name!r} has no JSON form: {error}") from None


cdef bint is_plain(object value) except -1:
    """Whether it is made of nothing but what JSON itself has. Anything else may hold bytes, and the Python twin looks.
    As deep as its text, whose depth was bounded."""
    cdef object kind = type(value)
    cdef PyObject* name
    cdef PyObject* part
    cdef Py_ssize_t place = 0
    if kind is str or kind is int or kind is float or kind is bool or value is None:
        return True
    if kind is dict:
        while PyDict_Next(value, &place, &name, &part):
            if type(<object>name) is not str or not is_plain(<object>part):
                return False
        return True
    if kind is list:
        for item in <list>value:
            if not is_plain(item):
                return False
        return True
    return False


cdef object json_part(Py_ssize_t index, str name, object value, bint checked, Text* out, Py_ssize_t* keys):
    """The text of `data` or `meta`; the returned object keeps it alive."""
    cdef JsonScan found
    cdef int why
    cdef bint given = True
    cdef bytes text
    if type(value) is bytes:
        text = value
    elif isinstance(value, (bytes, bytearray, memoryview, Raw)):
        text = bytes(value)
    else:
        checked = given = False
        text = value_text(index, name, value)
    out.data = <const uint8_t*>PyBytes_AS_STRING(text)
    out.size = PyBytes_GET_SIZE(text)
    out.spaces = 0
    keys[0] = 0
    if checked:
        return text
    found.names = NULL
    if out.size >= RELEASE_GIL_BYTES:
        with nogil:
            why = scan_json(out.data, out.size, JSON_DEPTH, &found)
    else:
        why = scan_json(out.data, out.size, JSON_DEPTH, &found)
    if why != JSON_OK:
        raise InvalidRecord(index, f"{name!r} is not JSON: {BadJson(found.position, WHYS[why])}")
    if not given and not is_plain(value):
        refuse_bytes(index, name, value)
    out.size -= found.spaces
    out.spaces = found.spaces
    keys[0] = found.keys
    return text


cdef inline uint8_t* put(uint8_t* out, const void* data, Py_ssize_t size) noexcept nogil:
    memcpy(out, data, size)
    return out + size


cdef inline uint8_t* put_json(uint8_t* out, Text* text) noexcept nogil:
    if text.spaces:
        copy_compact(text.data, text.size + text.spaces, out)
    else:
        memcpy(out, text.data, text.size)
    return out + text.size


cdef object NAME_DATA = "data", NAME_TAG = "tag", NAME_NODE = "node", NAME_KEY = "key", NAME_META = "meta"

cdef struct Fields:
    # The values of a record's fields, borrowed from it; NULL = absent.
    PyObject* data
    PyObject* tag
    PyObject* node
    PyObject* key
    PyObject* meta


cdef bint take_fields(object record, Fields* found) except -1:
    """The fields of a dict whose names are the very objects that literals share: no hash, no lookup. False where one is
    another object, which may still be the same name."""
    cdef PyObject* name
    cdef PyObject* value
    cdef Py_ssize_t place = 0
    cdef Py_ssize_t left = PyDict_Size(record)
    found.data = found.tag = found.node = found.key = found.meta = NULL
    while left and PyDict_Next(record, &place, &name, &value):
        left -= 1
        if name == <PyObject*>NAME_DATA:
            found.data = value
        elif name == <PyObject*>NAME_TAG:
            found.tag = value
        elif name == <PyObject*>NAME_NODE:
            found.node = value
        elif name == <PyObject*>NAME_KEY:
            found.key = value
        elif name == <PyObject*>NAME_META:
            found.meta = value
        else:
            return False
    return True


cdef inline object field(object record, object name):
    """A field of a dict, UNSET if it is not there."""
    cdef PyObject* found = PyDict_GetItemWithError(record, name)
    return UNSET if found == NULL else <object>found


def prepare(records, *, default_node=None, checked=False, strict_fields=True, Py_ssize_t frames_max=APPEND_BYTES):
    cdef bint is_checked = checked, is_strict = strict_fields, has_tags = False, is_mapping = False
    cdef object last_type = None
    cdef list batch = list(records)  # a copy: the values' own code may run below and change the caller's list
    cdef Py_ssize_t count = PyList_GET_SIZE(batch), i, known, room = 0, used = 0, body_size, length, accounted
    cdef Py_ssize_t keys = 0, total = 0
    cdef bytearray frames = bytearray(), entries = bytearray()
    cdef Text data, tag, node, key, meta
    cdef Fields fields
    cdef object record, data_value, tag_value, node_value, key_value, meta_value, data_owner, meta_owner, key_owner
    cdef uint8_t* out
    cdef uint8_t* entry
    cdef uint8_t flags
    tag_value = node_value = key_value = meta_value = UNSET
    key_owner = meta_owner = None
    PyByteArray_Resize(entries, ENTRY_SIZE * count)
    entry = <uint8_t*>PyByteArray_AS_STRING(entries)
    for i in range(count):
        record = batch[i]
        if type(record) is not dict:
            if type(record) is not last_type:
                last_type = type(record)
                is_mapping = isinstance(record, Mapping)
            if is_mapping:
                record = dict(record)
        if type(record) is dict and take_fields(record, &fields):
            data_value = UNSET if fields.data == NULL else <object>fields.data
            # Most records lack most of them, and what is UNSET already need not be set so again.
            if fields.tag != NULL or tag_value is not UNSET:
                tag_value = UNSET if fields.tag == NULL else <object>fields.tag
            if fields.node != NULL or node_value is not UNSET:
                node_value = UNSET if fields.node == NULL else <object>fields.node
            if fields.key != NULL or key_value is not UNSET:
                key_value = UNSET if fields.key == NULL else <object>fields.key
            if fields.meta != NULL or meta_value is not UNSET:
                meta_value = UNSET if fields.meta == NULL else <object>fields.meta
        elif type(record) is dict:
            data_value = field(record, "data")
            known = data_value is not UNSET
            tag_value = node_value = key_value = meta_value = UNSET
            if len(<dict>record) != known:
                tag_value = field(record, "tag")
                node_value = field(record, "node")
                key_value = field(record, "key")
                meta_value = field(record, "meta")
                if is_strict:
                    # A field that is there but UNSET makes the count wrong; the slow check then finds nothing.
                    known += (
                        (tag_value is not UNSET)
                        + (node_value is not UNSET)
                        + (key_value is not UNSET)
                        + (meta_value is not UNSET)
                    )
                    if known != len(<dict>record):
                        unknown_field(i, record)
        else:
            data_value = getattr(record, "data", UNSET)
            tag_value = getattr(record, "tag", UNSET)
            node_value = getattr(record, "node", UNSET)
            key_value = getattr(record, "key", UNSET)
            meta_value = getattr(record, "meta", UNSET)
        if data_value is UNSET:
            record_error(i, record, default_node)
        flags = 0
        tag.size = node.size = key.size = meta.size = 0
        tag.data = node.data = key.data = meta.data = NULL
        meta.spaces = 0
        if tag_value is not UNSET and tag_value is not None:
            if not text_part(tag_value, TAG_BYTES, &tag):
                record_error(i, record, default_node)
            flags |= TAG
            has_tags = True
        if (node_value is UNSET or node_value is None) and default_node is not None:
            node_value = default_node
        if node_value is not UNSET and node_value is not None:
            if not text_part(node_value, NODE_BYTES, &node):
                record_error(i, record, default_node)
            flags |= NODE
        if key_value is not UNSET and key_value is not None:
            if not text_part(key_value, KEY_BYTES, &key):
                record_error(i, record, default_node)
            key_owner = json_key(&key)
        if meta_value is not UNSET and meta_value is not None:
            meta_owner = json_part(i, "meta", meta_value, False, &meta, &keys)
            check_meta(i, &meta, keys)
        data_owner = json_part(i, "data", data_value, is_checked, &data, &keys)
        accounted = data.size + meta.size
        if accounted > RECORD_BYTES:
            too_large(i, accounted)
        body_size = data.size + 6
        if key.data != NULL:
            body_size += key.size + 5 + (0 if key_owner is not None else 2)
        if meta.data != NULL:
            body_size += meta.size + 5
        length = WAL_OVERHEAD + node.size + tag.size + body_size
        if used + length > frames_max:
            batch_too_large(frames_max)
        if used + length > room:
            # As if the rest were like this record, but at most twice what is needed: a batch of one size takes one step.
            room = used + length + min(length * (count - i - 1), max(used, FIRST_ROOM))
            PyByteArray_Resize(frames, room)
        out = <uint8_t*>PyByteArray_AS_STRING(frames) + used
        store32(out, <uint32_t>(length - 4))
        out[4] = APPEND
        out[5] = flags
        store64(out + 6, 0)
        store64(out + 14, 0)
        store64(out + 22, 0)
        store16(out + 30, <uint16_t>node.size)
        store16(out + 32, <uint16_t>tag.size)
        store32(out + 34, <uint32_t>body_size)
        out = put(out + WAL_HEADER, node.data, node.size) if node.size else out + WAL_HEADER
        if tag.size:
            out = put(out, tag.data, tag.size)
        out[0] = 0x7B
        out += 1
        if key.data != NULL:
            out = put(out, b'"k":', 4)
            if key_owner is None:
                out[0] = 0x22
                out = put(out + 1, key.data, key.size)
                out[0] = 0x22
                out += 1
            else:
                out = put(out, key.data, key.size)
            out[0] = 0x2C
            out += 1
        if meta.data != NULL:
            out = put_json(put(out, b'"m":', 4), &meta)
            out[0] = 0x2C
            out += 1
        out = put_json(put(out, b'"d":', 4), &data)
        out[0] = 0x7D
        store64(out + 1, 0)
        store_entry(entry, <uint32_t>used, <uint32_t>length, 0, flags, accounted)
        entry += ENTRY_SIZE
        used += length
        total += accounted
    PyByteArray_Resize(frames, used)
    return Prepared(frames, entries, count, total, has_tags)


cdef object json_key(Text* key):
    """None if the key needs no escapes, else its JSON text, which `key` then points at."""
    cdef bytes text
    if plain_end(key.data, 0, key.size) == key.size:
        return None
    text = msgspec.json.encode(PyUnicode_DecodeUTF8(<const char*>key.data, key.size, NULL))
    key.data = <const uint8_t*>PyBytes_AS_STRING(text)
    key.size = PyBytes_GET_SIZE(text)
    return text


cdef int check_meta(Py_ssize_t index, Text* meta, Py_ssize_t keys) except -1:
    """Refuse a meta beyond its limits; a JSON null is no meta."""
    cdef Py_ssize_t at = 0
    while is_space(meta.data[at]):
        at += 1
    if meta.data[at] == 0x6E:
        meta.data = NULL
        meta.size = 0
        return 0
    if meta.size > META_BYTES:
        raise InvalidRecord(index, f"'meta' has {meta.size} bytes; the limit is {META_BYTES}")
    if keys > META_KEYS:
        raise InvalidRecord(index, f"'meta' has {keys} keys; the limit is {META_KEYS}")
    return 0


cdef object unknown_field(object index, dict record):
    from topics.format import prepare as twin

    twin.check_names(index, record)


cdef object batch_too_large(object frames_max):
    from topics.format import prepare as twin

    raise twin.batch_too_large(frames_max)


cdef object too_large(object index, object accounted):
    from topics.format import prepare as twin

    raise twin.too_large(index, accounted)


cdef void stamp_frames(
    uint8_t* frames, uint8_t* entries, Py_ssize_t count, uint64_t topic_id, uint64_t first_seq, uint64_t ts,
    bint durable, bint more_last, const uint8_t* ends, const uint8_t* ends_end,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint more
    cdef uint8_t* entry = entries
    cdef uint8_t* p
    cdef uint32_t length
    cdef uint8_t common = DURABLE if durable else 0
    for i in range(count):
        p = frames + load32(entry)
        length = load32(entry + 4)
        more = more_last or i < count - 1
        if ends != ends_end and load32(ends) == <uint32_t>(i + 1):
            ends += 4
            more = more_last and i == count - 1
        p[5] = (entry[16] & KEPT) | common | (MORE if more else 0)
        store64(p + 6, topic_id)
        store64(p + 14, first_seq + i)
        store64(p + 22, ts)
        store64(p + length - 8, XXH3_64bits(p + 4, length - 12))
        store64(entry + 8, ts)
        entry += ENTRY_SIZE


cdef inline int check_entries(Py_ssize_t size, Py_ssize_t start_index, Py_ssize_t count) except -1:
    if start_index < 0 or count < 0 or start_index > size // ENTRY_SIZE or count > size // ENTRY_SIZE - start_index:
        raise ValueError(f"entries {start_index}..{start_index + count} lie outside {size} bytes of entries")
    return 0


def stamp(frames, entries, Py_ssize_t count, uint64_t topic_id, uint64_t first_seq, uint64_t ts, bint durable,
          bint more_last, bytes ends=None):
    cdef Py_buffer data, index
    cdef Py_ssize_t i
    cdef uint8_t* entry
    cdef const uint8_t* marks = NULL
    cdef const uint8_t* marks_end = NULL
    if ends is not None:
        marks = <const uint8_t*>PyBytes_AS_STRING(ends)
        marks_end = marks + PyBytes_GET_SIZE(ends) // 4 * 4
    PyObject_GetBuffer(frames, &data, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_WRITABLE)
        try:
            check_entries(index.len, 0, count)
            if count and first_seq + <uint64_t>(count - 1) < first_seq:
                raise OverflowError("seqs have 64 bits")
            entry = <uint8_t*>index.buf
            for i in range(count):
                if load32(entry + 4) < WAL_OVERHEAD or <uint64_t>load32(entry) + load32(entry + 4) > <uint64_t>data.len:
                    raise ValueError(f"entry {i} points outside the frames")
                entry += ENTRY_SIZE
            if data.len >= RELEASE_GIL_BYTES:
                with nogil:
                    stamp_frames(<uint8_t*>data.buf, <uint8_t*>index.buf, count, topic_id, first_seq, ts, durable,
                                 more_last, marks, marks_end)
            else:
                stamp_frames(<uint8_t*>data.buf, <uint8_t*>index.buf, count, topic_id, first_seq, ts, durable,
                             more_last, marks, marks_end)
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&data)


def rebase(entries, Py_ssize_t start_index, Py_ssize_t count, int64_t delta):
    cdef Py_buffer index
    cdef Py_ssize_t i
    cdef uint8_t* entry
    cdef int64_t low = U32_MAX, high = 0, offset
    PyObject_GetBuffer(entries, &index, PyBUF_WRITABLE)
    try:
        check_entries(index.len, start_index, count)
        entry = <uint8_t*>index.buf + start_index * ENTRY_SIZE
        for i in range(count):
            offset = load32(entry + i * ENTRY_SIZE)
            low = min(low, offset)
            high = max(high, offset)
        # Compared so that nothing overflows: delta may be anything.
        if count and (delta < -low or delta > <int64_t>U32_MAX - high):
            raise OverflowError("an offset does not fit into 32 bits")
        for i in range(count):
            store32(entry + i * ENTRY_SIZE, <uint32_t>(load32(entry + i * ENTRY_SIZE) + delta))
    finally:
        PyBuffer_Release(&index)
