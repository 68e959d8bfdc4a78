/* The short way through JSON: an object or array of plain texts and numbers, as most records are.
 *
 * The caller has mapped the quotes, so the text is known to be ASCII without escapes and control characters, and the
 * place of the next quote hangs on a register alone. Nothing is explained here: what is unlike this goes the long way,
 * which says what is wrong and where, if anything is. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PLAIN_DEPTH = 64 }; /* one bit per open bracket */

/* Takes the next quote; there is always one more bit, behind the text. */
#define TAKE_QUOTE(place)                     \
    do {                                      \
        while (bits == 0) {                   \
            base += 64;                       \
            bits = *++quotes;                 \
        }                                     \
        (place) = base + __builtin_ctzll(bits); \
        bits &= bits - 1;                     \
    } while (0)

#define IS_DIGIT(c) ((uint8_t)((c) - '0') < 10)

#define SKIP_SPACES()      \
    while (p[at] == ' ') { \
        at++;              \
        skipped++;         \
    }

/* From the opening quote behind the closing one; gives up at the end of the text. */
#define SKIP_STRING()        \
    do {                     \
        TAKE_QUOTE(at);      \
        TAKE_QUOTE(at);      \
        if (at == size)      \
            return 0;        \
        at++;                \
    } while (0)

#define SKIP_KEY()          \
    do {                    \
        SKIP_SPACES();      \
        if (p[at] != '"')   \
            return 0;       \
        SKIP_STRING();      \
        if (p[at] != ':')   \
            return 0;       \
        at++;               \
        named += depth == 1; \
    } while (0)

/* True if the text is one object or array; then `keys` are those of the outermost object, and `spaces` the bytes that
   compaction removes. The last byte is a bracket and no part of a string, so every step below ends there at the
   latest, and behind it only a closing bracket does. */
static inline int scan_plain(const uint8_t *p, ptrdiff_t size, ptrdiff_t depth_max, const uint64_t *quotes,
                             ptrdiff_t *keys, ptrdiff_t *spaces) {
    uint64_t bits = *quotes, objects = 0;
    ptrdiff_t base = 0, at = 0, depth = 0, named = 0, skipped = 0;
    if (size < 2 || (p[0] != '{' && p[0] != '[') || (p[size - 1] != '}' && p[size - 1] != ']'))
        return 0;
    if (depth_max > PLAIN_DEPTH)
        depth_max = PLAIN_DEPTH;
    for (;;) { /* before a value */
        SKIP_SPACES();
        uint8_t c = p[at];
        if (c == '"') {
            SKIP_STRING();
        } else if (IS_DIGIT(c) || c == '-') {
            if (c == '-' && !IS_DIGIT(c = p[++at]))
                return 0;
            at++;
            if (c != '0')
                while (IS_DIGIT(p[at]))
                    at++;
            if (p[at] == '.') {
                if (!IS_DIGIT(p[++at]))
                    return 0;
                while (IS_DIGIT(p[at]))
                    at++;
            }
            if ((p[at] | 0x20) == 'e') {
                at++;
                if (p[at] == '+' || p[at] == '-')
                    at++;
                if (!IS_DIGIT(p[at]))
                    return 0;
                while (IS_DIGIT(p[at]))
                    at++;
            }
        } else if (c == '{' || c == '[') {
            if (depth == depth_max)
                return 0;
            depth++;
            objects = objects << 1 | (c == '{');
            at++;
            SKIP_SPACES();
            if (c == '{') {
                if (p[at] != '}') {
                    SKIP_KEY();
                    continue;
                }
            } else if (p[at] != ']') {
                continue;
            }
        } else if (size - at > 5 && memcmp(p + at, "false", 5) == 0) {
            at += 5;
        } else if (size - at > 4 && (memcmp(p + at, "true", 4) == 0 || memcmp(p + at, "null", 4) == 0)) {
            at += 4;
        } else {
            return 0;
        }
        for (;;) { /* behind a value */
            SKIP_SPACES();
            if (p[at] == ',') {
                at++;
                if (objects & 1)
                    SKIP_KEY();
                break;
            }
            if (p[at] != (objects & 1 ? '}' : ']'))
                return 0;
            at++;
            objects >>= 1;
            if (--depth == 0) {
                *keys = named;
                *spaces = skipped;
                return at == size;
            }
            if (at == size)
                return 0;
        }
    }
}

#undef TAKE_QUOTE
#undef IS_DIGIT
#undef SKIP_SPACES
#undef SKIP_STRING
#undef SKIP_KEY
