# Strict JSON: check, count, compact. The twin of jsontext.py.

cdef enum:
    # Numbers of jsontext.WHYS.
    JSON_OK = -1
    NOT_UTF8 = 0
    ENDS_EARLY = 1
    UNEXPECTED = 2
    BAD_NUMBER = 3
    NOT_CLOSED = 4
    CONTROL = 5
    BAD_ESCAPE = 6
    TOO_DEEP = 7
    TRAILING = 8

cdef enum:
    # What may come next.
    WANT_VALUE
    WANT_VALUE_OR_CLOSE
    WANT_KEY
    WANT_KEY_OR_CLOSE
    WANT_COLON
    WANT_COMMA_OR_CLOSE

cdef enum:
    NAMES_MAX = 32

cdef struct Names:
    # Field names to look for in the objects at depth 1 and 3: a body and the records in it.
    int count
    const uint8_t* texts[NAMES_MAX]
    Py_ssize_t sizes[NAMES_MAX]
    uint32_t seen[2]
    bint doubtful  # one came twice in an object, or a name there is escaped and may be any

cdef enum:
    QUOTED_BYTES = 1024  # longer texts are walked without a map of their quotes
    QUOTED_WORDS = 17

cdef struct JsonScan:
    Py_ssize_t position  # of the fault
    Py_ssize_t spaces    # bytes that compaction removes
    Py_ssize_t keys      # of the outermost object
    Names* names         # NULL = do not look
    const uint64_t* quotes  # a bit per byte that is a quote, if `map_quotes` made it; NULL = not known


cdef void note_name(Names* names, Py_ssize_t depth, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """`p` is a name in an object at `depth`, without its quotes."""
    cdef int i
    cdef uint32_t bit
    cdef uint32_t* seen = &names.seen[depth >> 1]
    if memchr(p, 0x5C, size) != NULL:
        names.doubtful = True
        return
    for i in range(names.count):
        if names.sizes[i] == size and memcmp(names.texts[i], p, size) == 0:
            bit = <uint32_t>1 << i
            if seen[0] & bit:
                names.doubtful = True
            seen[0] |= bit
            return


cdef inline bint is_space(uint8_t c) noexcept nogil:
    return c == 0x20 or c == 0x0A or c == 0x0D or c == 0x09


cdef inline bint is_digit(uint8_t c) noexcept nogil:
    return <uint8_t>(c - 0x30) < 10


cdef inline int hex_value(uint8_t c) noexcept nogil:
    if is_digit(c):
        return c - 0x30
    c |= 0x20
    return c - 0x57 if 0x61 <= c <= 0x66 else -1


cdef inline int hex4(const uint8_t* p, Py_ssize_t left) noexcept nogil:
    """The value of four hex digits, or -1."""
    cdef int value = 0, digit, i
    if left < 4:
        return -1
    for i in range(4):
        digit = hex_value(p[i])
        if digit < 0:
            return -1
        value = value << 4 | digit
    return value


cdef Py_ssize_t escape_size(const uint8_t* p, Py_ssize_t left) noexcept nogil:
    """Length of the escape that begins at the backslash `p`, both halves of a surrogate pair, or 0 if it is bad."""
    cdef int value
    cdef uint8_t c
    if left < 2:
        return 0
    c = p[1]
    if c == 0x22 or c == 0x5C or c == 0x2F or c == 0x62 or c == 0x66 or c == 0x6E or c == 0x72 or c == 0x74:
        return 2
    if c != 0x75:
        return 0
    value = hex4(p + 2, left - 2)
    if value < 0 or 0xDC00 <= value <= 0xDFFF:
        return 0
    if value < 0xD800 or value > 0xDFFF:
        return 6
    if left < 8 or p[6] != 0x5C or p[7] != 0x75:
        return 0
    value = hex4(p + 8, left - 8)
    return 12 if 0xDC00 <= value <= 0xDFFF else 0


cdef inline Py_ssize_t plain_end(const uint8_t* p, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """The first quote, backslash or control character at or after `at`, or `size`."""
    cdef uint64_t word, special
    while at + 8 <= size:
        # Eight bytes at once. The lowest bit found is exact; borrows can only fake hits above a real one.
        word = load64(p + at)
        special = (word - 0x2020202020202020U) & ~word
        special |= ((word ^ 0x2222222222222222U) - 0x0101010101010101U) & ~(word ^ 0x2222222222222222U)
        special |= ((word ^ 0x5C5C5C5C5C5C5C5CU) - 0x0101010101010101U) & ~(word ^ 0x5C5C5C5C5C5C5C5CU)
        special &= 0x8080808080808080U
        if special:
            return at + (__builtin_ctzll(special) >> 3)
        at += 8
    while at < size and p[at] >= 0x20 and p[at] != 0x22 and p[at] != 0x5C:
        at += 1
    return at


cdef extern from * nogil:
    """
    /* Sets a bit for each quote among 64 bytes; true if one of them is not plain: an escape, a control character, not
       ASCII. */
    #if defined(__SSE2__)
    #include <emmintrin.h>
    static inline int mark_quotes(const uint8_t *p, uint64_t *quotes) {
        __m128i odd = _mm_setzero_si128();
        uint64_t bits = 0;
        for (int i = 0; i < 64; i += 16) {
            __m128i c = _mm_loadu_si128((const __m128i *)(p + i));
            /* Signed, so that what is not ASCII lies below too. */
            odd = _mm_or_si128(odd, _mm_cmplt_epi8(c, _mm_set1_epi8(0x20)));
            odd = _mm_or_si128(odd, _mm_cmpeq_epi8(c, _mm_set1_epi8(0x5C)));
            bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(c, _mm_set1_epi8(0x22))) << i;
        }
        *quotes = bits;
        return _mm_movemask_epi8(odd);
    }
    #else
    static inline int mark_quotes(const uint8_t *p, uint64_t *quotes) {
        uint64_t bits = 0;
        int odd = 0;
        for (int i = 0; i < 64; i++) {
            odd |= p[i] < 0x20 || p[i] >= 0x80 || p[i] == 0x5C;
            bits |= (uint64_t)(p[i] == 0x22) << i;
        }
        *quotes = bits;
        return odd;
    }
    #endif
    """
    int mark_quotes(const uint8_t* p, uint64_t* quotes)


cdef inline bint map_quotes(const uint8_t* p, Py_ssize_t size, uint64_t* quotes) noexcept nogil:
    """Set a bit for every quote, and one behind the text. False if a byte of it is not plain."""
    cdef uint8_t rest[64]
    cdef Py_ssize_t at = 0
    while at + 64 <= size:
        if mark_quotes(p + at, &quotes[at >> 6]):
            return False
        at += 64
    if size >= 64:
        # The last 64 bytes once more, those that were looked at before shifted out: no copy.
        if size > at:
            if mark_quotes(p + size - 64, &quotes[at >> 6]):
                return False
            quotes[at >> 6] >>= 64 - (size - at)
        else:
            quotes[at >> 6] = 0
    else:
        memset(rest, 0x20, 64)
        memcpy(rest, p, size)
        if mark_quotes(rest, &quotes[0]):
            return False
    quotes[at >> 6] |= <uint64_t>1 << (size - at)
    return True


cdef struct Quotes:
    # The quotes of a plain text that were not met yet. Both ends of a string are taken in turn, so the next place hangs
    # on a register alone and not on what was read there.
    const uint64_t* words  # NULL = the text is not known to be plain
    uint64_t bits          # of the present word
    Py_ssize_t base        # its place


cdef inline Py_ssize_t next_quote(Quotes* quotes) noexcept nogil:
    cdef Py_ssize_t at
    while quotes.bits == 0:
        quotes.base += 64
        quotes.bits = quotes.words[quotes.base >> 6]
    at = quotes.base + __builtin_ctzll(quotes.bits)
    quotes.bits &= quotes.bits - 1
    return at


cdef inline int string_end(const uint8_t* p, Py_ssize_t* place, Py_ssize_t size, Quotes* quotes) noexcept nogil:
    """Move from the opening quote behind the closing one; at a fault to the fault."""
    cdef Py_ssize_t at = place[0] + 1
    cdef Py_ssize_t step
    if quotes.words != NULL:
        next_quote(quotes)
        at = next_quote(quotes)
        if at == size:
            return NOT_CLOSED
        place[0] = at + 1
        return JSON_OK
    while True:
        at = plain_end(p, at, size)
        if at == size:
            return NOT_CLOSED
        if p[at] == 0x22:
            place[0] = at + 1
            return JSON_OK
        if p[at] != 0x5C:
            place[0] = at
            return CONTROL
        step = escape_size(p + at, size - at)
        if step == 0:
            place[0] = at
            return BAD_ESCAPE
        at += step


cdef inline Py_ssize_t number_end(const uint8_t* p, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """End of the number at `at`, or -1."""
    cdef Py_ssize_t try_at
    if p[at] == 0x2D:
        at += 1
        if at == size or not is_digit(p[at]):
            return -1
    if p[at] == 0x30:
        at += 1
    else:
        while at < size and is_digit(p[at]):
            at += 1
    if at + 1 < size and p[at] == 0x2E and is_digit(p[at + 1]):
        at += 2
        while at < size and is_digit(p[at]):
            at += 1
    if at < size and p[at] | 0x20 == 0x65:
        try_at = at + 1
        if try_at < size and (p[try_at] == 0x2B or p[try_at] == 0x2D):
            try_at += 1
        if try_at < size and is_digit(p[try_at]):
            at = try_at + 1
            while at < size and is_digit(p[at]):
                at += 1
    return at


cdef inline int scalar_end(const uint8_t* p, Py_ssize_t* place, Py_ssize_t size, Quotes* quotes) noexcept nogil:
    cdef Py_ssize_t at = place[0]
    cdef uint8_t c = p[at]
    if c == 0x22:
        return string_end(p, place, size, quotes)
    if c == 0x2D or is_digit(c):
        at = number_end(p, at, size)
        if at < 0:
            return BAD_NUMBER
        place[0] = at
        return JSON_OK
    if c == 0x74 and size - at >= 4 and memcmp(p + at, b"true", 4) == 0:
        place[0] = at + 4
        return JSON_OK
    if c == 0x6E and size - at >= 4 and memcmp(p + at, b"null", 4) == 0:
        place[0] = at + 4
        return JSON_OK
    if c == 0x66 and size - at >= 5 and memcmp(p + at, b"false", 5) == 0:
        place[0] = at + 5
        return JSON_OK
    return UNEXPECTED


cdef int scan_value(
    const uint8_t* p, Py_ssize_t* place, Py_ssize_t size, Py_ssize_t depth_max, JsonScan* found
) noexcept nogil:
    """Move from the start of a value, or the space before it, behind its end; JSON_OK, or the number of the fault, with
    its position in `found`. The text is known to be UTF-8."""
    cdef uint64_t objects[17]  # one bit per open bracket, 1025 levels: set = object
    cdef Py_ssize_t at = place[0], depth = 0
    cdef int expect = WANT_VALUE, why
    cdef uint8_t c, close
    cdef bint in_object
    cdef Quotes quotes
    quotes.words = found.quotes
    quotes.bits = found.quotes[0] if found.quotes != NULL else 0
    quotes.base = 0
    found.spaces = 0
    found.keys = 0
    objects[0] = 0
    while True:
        while at < size and is_space(p[at]):
            at += 1
            found.spaces += 1
        found.position = at
        if at == size:
            return ENDS_EARLY
        c = p[at]
        if expect == WANT_KEY or expect == WANT_KEY_OR_CLOSE:
            if c == 0x22:
                why = string_end(p, &at, size, &quotes)
                if why != JSON_OK:
                    found.position = at
                    return why
                found.keys += depth == 1
                if found.names != NULL and (depth == 1 or depth == 3):
                    note_name(found.names, depth, p + found.position + 1, at - found.position - 2)
                if at < size and p[at] == 0x3A:
                    at += 1
                    expect = WANT_VALUE
                else:
                    expect = WANT_COLON
                continue
            if expect == WANT_KEY or c != 0x7D:
                return UNEXPECTED
            depth -= 1
            at += 1
        elif expect == WANT_COLON:
            if c != 0x3A:
                return UNEXPECTED
            at += 1
            expect = WANT_VALUE
            continue
        elif expect == WANT_COMMA_OR_CLOSE:
            if objects[depth >> 6] >> (depth & 63) & 1:
                close = 0x7D
                expect = WANT_KEY
            else:
                close = 0x5D
                expect = WANT_VALUE
            if c == 0x2C:
                at += 1
                continue
            if c != close:
                return UNEXPECTED
            depth -= 1
            at += 1
        elif expect == WANT_VALUE_OR_CLOSE and c == 0x5D:
            depth -= 1
            at += 1
        elif c == 0x7B or c == 0x5B:
            if depth == depth_max:
                return TOO_DEEP
            depth += 1
            at += 1
            if depth & 63 == 0:
                objects[depth >> 6] = 0
            if c == 0x7B:
                if found.names != NULL and (depth == 1 or depth == 3):
                    found.names.seen[depth >> 1] = 0
                objects[depth >> 6] |= <uint64_t>1 << (depth & 63)
                expect = WANT_KEY_OR_CLOSE
            else:
                objects[depth >> 6] &= ~(<uint64_t>1 << (depth & 63))
                expect = WANT_VALUE_OR_CLOSE
            continue
        else:
            why = scalar_end(p, &at, size, &quotes)
            if why != JSON_OK:
                found.position = at
                return why
        if depth == 0:
            place[0] = at
            return JSON_OK
        expect = WANT_COMMA_OR_CLOSE
        in_object = objects[depth >> 6] >> (depth & 63) & 1
        # Scalars in a row without spaces go this short way; whatever is unlike that goes on above.
        while at + 1 < size and p[at] == 0x2C:
            if in_object:
                if p[at + 1] != 0x22:
                    break
                at += 1
                found.position = at
                why = string_end(p, &at, size, &quotes)
                if why != JSON_OK:
                    found.position = at
                    return why
                found.keys += depth == 1
                if found.names != NULL and (depth == 1 or depth == 3):
                    note_name(found.names, depth, p + found.position + 1, at - found.position - 2)
                if at == size or p[at] != 0x3A:
                    expect = WANT_COLON
                    break
            at += 1
            expect = WANT_VALUE
            if at == size or not (p[at] == 0x22 or p[at] == 0x2D or is_digit(p[at])):
                break
            why = scalar_end(p, &at, size, &quotes)
            if why != JSON_OK:
                found.position = at
                return why
            expect = WANT_COMMA_OR_CLOSE


cdef extern from "plain_json.h" nogil:
    bint scan_plain(const uint8_t* p, Py_ssize_t size, Py_ssize_t depth_max, const uint64_t* quotes, Py_ssize_t* keys,
                    Py_ssize_t* spaces)


cdef int scan_json(const uint8_t* p, Py_ssize_t size, Py_ssize_t depth_max, JsonScan* found) noexcept nogil:
    """A whole text: one value and space around it."""
    cdef Py_ssize_t at = 0
    cdef int why
    cdef uint64_t quotes[QUOTED_WORDS]
    found.spaces = 0
    found.keys = 0
    found.quotes = NULL
    if size <= QUOTED_BYTES and map_quotes(p, size, quotes):
        if found.names == NULL and scan_plain(p, size, depth_max, quotes, &found.keys, &found.spaces):
            return JSON_OK
        found.quotes = quotes
    else:
        found.position = bad_utf8(p, size)
        if found.position >= 0:
            return NOT_UTF8
    why = scan_value(p, &at, size, depth_max, found)
    if why != JSON_OK:
        return why
    while at < size and is_space(p[at]):
        at += 1
        found.spaces += 1
    found.position = at
    return JSON_OK if at == size else TRAILING


cdef void copy_compact(const uint8_t* p, Py_ssize_t size, uint8_t* out) noexcept nogil:
    """Copy a checked text without its insignificant whitespace."""
    cdef Py_ssize_t at = 0, end
    while at < size:
        if p[at] == 0x22:
            end = at + 1
            while p[end] != 0x22:
                end += 2 if p[end] == 0x5C else 1
            end += 1
            memcpy(out, p + at, end - at)
            out += end - at
            at = end
            continue
        if not is_space(p[at]):
            out[0] = p[at]
            out += 1
        at += 1


cdef bytes compact_text(text, depth_max, Names* names):
    cdef Py_buffer view
    cdef JsonScan found
    cdef Py_ssize_t depth
    cdef int why
    cdef bytes compact
    if not 0 <= depth_max <= DEPTH_LIMIT:
        raise ValueError(f"depth_max is {depth_max}; it must lie in 0..{DEPTH_LIMIT}")
    depth = depth_max
    found.names = names
    PyObject_GetBuffer(text, &view, PyBUF_SIMPLE)
    try:
        if view.len >= RELEASE_GIL_BYTES:
            with nogil:
                why = scan_json(<const uint8_t*>view.buf, view.len, depth, &found)
        else:
            why = scan_json(<const uint8_t*>view.buf, view.len, depth, &found)
        if why != JSON_OK:
            raise BadJson(found.position, WHYS[why])
        if found.spaces == 0:
            return text if type(text) is bytes else bytes(text)
        compact = PyBytes_FromStringAndSize(NULL, view.len - found.spaces)
        copy_compact(<const uint8_t*>view.buf, view.len, <uint8_t*>PyBytes_AS_STRING(compact))
        return compact
    finally:
        PyBuffer_Release(&view)


def compact_json(text, depth_max):
    return compact_text(text, depth_max, NULL)


def compact_body(text, depth_max, tuple names not None):
    cdef Names sought
    cdef bytes name, compact
    if len(names) > NAMES_MAX:
        raise ValueError(f"{len(names)} names are more than {NAMES_MAX}")
    sought.count = 0
    sought.doubtful = False
    sought.seen[0] = sought.seen[1] = 0
    for name in names:
        sought.texts[sought.count] = <const uint8_t*>PyBytes_AS_STRING(name)
        sought.sizes[sought.count] = PyBytes_GET_SIZE(name)
        sought.count += 1
    compact = compact_text(text, depth_max, &sought)
    return compact, bool(sought.doubtful)
