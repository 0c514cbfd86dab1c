#include "ptx/arithmetic.h"

#include <algorithm>
#include <array>
#include <cfenv>
#include <cmath>
#include <limits>

namespace longreach::ptx {

namespace {

double f64_value(uint64_t bits) {
    return std::bit_cast<double>(bits);
}
uint64_t f64_bits(double x) {
    return std::bit_cast<uint64_t>(x);
}
// To nearest, ties to even; NaN is 0x7fff, as the manual says of cvt.
uint64_t bf16_bits(float x) {
    if (std::isnan(x)) return 0x7fff;
    const auto bits = static_cast<uint32_t>(f32_bits(x));
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
float flushed(float x, bool ftz) {
    return ftz && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

// Signed or unsigned value of `type`, extended to 64 bits.
uint64_t extended(uint64_t v, Type type) {
    const int bits = bits_of(type);
    return is_signed(type) ? sign_extended(v, bits) : low_bits(v, bits);
}

// --- floating point

template <class Real>
Real smaller_or_larger(const Compute& how, Real a, Real b) {
    const bool smaller = how.word == Word::min;
    if (std::isnan(a) || std::isnan(b)) {
        if (how.nan || (std::isnan(a) && std::isnan(b))) return std::numeric_limits<Real>::quiet_NaN();
        return std::isnan(a) ? b : a;
    }
    if (a == b) return std::signbit(a) == smaller ? a : b;  // -0 below +0
    return (a < b) == smaller ? a : b;
}

// Approximations are the double's value, rounded once.
template <class Real>
Real real_operation(const Compute& how, Real a, Real b, Real c) {
    switch (how.word) {
        case Word::add:
            return a + b;
        case Word::sub:
            return a - b;
        case Word::mul:
            return a * b;
        case Word::div:
            return a / b;
        case Word::mad:
        case Word::fma:
            return std::fma(a, b, c);
        case Word::neg:
            return -a;
        case Word::abs:
            return std::fabs(a);
        case Word::min:
        case Word::max:
            return smaller_or_larger(how, a, b);
        case Word::sqrt:
            return std::sqrt(a);
        case Word::rcp:
            return Real{1} / a;
        case Word::copysign:
            return std::copysign(b, a);  // the sign of the first, the size of the second
        case Word::ex2:
            return static_cast<Real>(std::exp2(double{a}));
        case Word::lg2:
            return static_cast<Real>(std::log2(double{a}));
        case Word::rsqrt:
            return static_cast<Real>(1.0 / std::sqrt(double{a}));
        case Word::sin:
            return static_cast<Real>(std::sin(double{a}));
        case Word::cos:
            return static_cast<Real>(std::cos(double{a}));
        case Word::tanh:
            return static_cast<Real>(std::tanh(double{a}));
        default:
            return std::numeric_limits<Real>::quiet_NaN();
    }
}

// The processor rounds as asked while this lives.
class Rounding {
  public:
    explicit Rounding(char direction) : before_(std::fegetround()) {
        if (direction != 'n')
            std::fesetround(direction == 'z' ? FE_TOWARDZERO : direction == 'm' ? FE_DOWNWARD : FE_UPWARD);
    }
    ~Rounding() { std::fesetround(before_); }
    Rounding(const Rounding&) = delete;
    Rounding& operator=(const Rounding&) = delete;

  private:
    int before_;
};

uint64_t run_f32(const Compute& how, const uint64_t* in) {
    const float y =
        real_operation<float>(how, flushed(f32_value(in[0]), how.ftz), flushed(f32_value(in[1]), how.ftz),
                              flushed(f32_value(in[2]), how.ftz));
    const float z = how.saturate ? (y > 0 ? std::min(y, 1.0f) : 0.0f) : y;
    return f32_bits(flushed(z, how.ftz));
}
uint64_t run_rounded(const Compute& how, const uint64_t* in) {
    const Rounding rounding(how.rounding);
    return run_f32(how, in);
}
uint64_t run_f64(const Compute& how, const uint64_t* in) {
    // The manual gives the upper half of the number only.
    if (how.word == Word::rcp && how.ftz) return f64_bits(1.0 / f64_value(in[0])) >> 32 << 32;
    return f64_bits(real_operation<double>(how, f64_value(in[0]), f64_value(in[1]), f64_value(in[2])));
}
// In f32 a sum or product of two bfloat16 and an fma of three round twice; to bf16 the double's value is exact enough.
uint64_t run_bf16(const Compute& how, const uint64_t* in) {
    const double y = real_operation<double>(how, double{bf16_value(in[0])}, double{bf16_value(in[1])},
                                            double{bf16_value(in[2])});
    // Rounding to odd at f32 keeps the second rounding right.
    float f = static_cast<float>(y);
    if (std::isfinite(f) && double{f} != y && (f32_bits(f) & 1) == 0)
        f = std::nextafter(f, y > double{f} ? std::numeric_limits<float>::infinity()
                                            : -std::numeric_limits<float>::infinity());
    return bf16_bits(f);
}
uint64_t run_bf16x2(const Compute& how, const uint64_t* in) {
    const uint64_t high[] = {in[0] >> 16, in[1] >> 16, in[2] >> 16};
    return run_bf16(how, in) | run_bf16(how, high) << 16;
}

// --- integers

uint64_t product(const Compute& how, uint64_t a, uint64_t b) {
    if (how.part != Part::high) return a * b;
    const auto wide = is_signed(how.type)
                          ? static_cast<unsigned __int128>(static_cast<__int128>(static_cast<int64_t>(a)) *
                                                           static_cast<int64_t>(b))
                          : static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(wide >> bits_of(how.type));
}

uint64_t quotient_or_rest(const Compute& how, uint64_t a, uint64_t b) {
    const bool quotient = how.word == Word::div;
    if (b == 0) return ~uint64_t{0};
    if (!is_signed(how.type)) return quotient ? a / b : a % b;
    const auto x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
    if (y == -1) return quotient ? 0 - a : 0;
    return static_cast<uint64_t>(quotient ? x / y : x % y);
}

uint64_t shifted(const Compute& how, uint64_t a, uint64_t by) {
    const auto bits = static_cast<uint64_t>(bits_of(how.type));
    if (how.word == Word::shl) return by >= bits ? 0 : a << by;
    if (is_signed(how.type))
        return static_cast<uint64_t>(static_cast<int64_t>(a) >> std::min<uint64_t>(by, 63));
    return by >= bits ? 0 : a >> by;
}

uint64_t reversed(uint64_t a, int bits) {
    uint64_t r = 0;
    for (int i = 0; i < bits; ++i) r |= (a >> i & 1) << (bits - 1 - i);
    return r;
}

uint64_t run_integer(const Compute& how, const uint64_t* in) {
    const Type t = how.type;
    const int bits = bits_of(t);
    const uint64_t a = extended(in[0], t), b = extended(in[1], t), c = extended(in[2], t);
    const auto less = [&] {
        return is_signed(t) ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
    };
    const auto result = [&](uint64_t v) { return low_bits(v, bits); };
    switch (how.word) {
        case Word::add:
            return result(a + b);
        case Word::sub:
            return result(a - b);
        case Word::mul:
            return how.part == Part::wide ? low_bits(a * b, 2 * bits) : result(product(how, a, b));
        case Word::mad:
            return how.part == Part::wide ? low_bits(a * b + in[2], 2 * bits)
                                          : result(product(how, a, b) + c);
        case Word::div:
        case Word::rem:
            return result(quotient_or_rest(how, a, b));
        case Word::neg:
            return result(0 - a);
        case Word::abs:
            return result(static_cast<int64_t>(a) < 0 ? 0 - a : a);
        case Word::min:
            return result(less() ? a : b);
        case Word::max:
            return result(less() ? b : a);
        case Word::and_:
            return result(a & b);
        case Word::or_:
            return result(a | b);
        case Word::xor_:
            return result(a ^ b);
        case Word::not_:
            return result(~a);
        case Word::shl:
        case Word::shr:
            return result(shifted(how, a, low_bits(in[1], 32)));
        case Word::popc:
            return static_cast<uint64_t>(std::popcount(low_bits(in[0], bits)));
        case Word::clz:
            return static_cast<uint64_t>(std::countl_zero(low_bits(in[0], bits)) - (64 - bits));
        case Word::brev:
            return reversed(in[0], bits);
        default:
            return 0;
    }
}

uint64_t run_select(const Compute& how, const uint64_t* in) {
    return low_bits(in[2] != 0 ? in[0] : in[1], bits_of(how.type));
}

// Bits of `in[0]` from position in[1], in[2] of them.
// bfi d, a, b, c, n: the low n bits of a in place of those of b from c on.
uint64_t run_insert(const Compute& how, const uint64_t* in) {
    const int bits = bits_of(how.type);
    const auto first = static_cast<int>(in[2] & 0xff), count = static_cast<int>(in[3] & 0xff);
    if (first >= bits) return low_bits(in[1], bits);
    const uint64_t mask = low_bits(count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1, bits - first)
                          << first;
    return (low_bits(in[1], bits) & ~mask) | (in[0] << first & mask);
}
uint64_t run_extract(const Compute& how, const uint64_t* in) {
    const int bits = bits_of(how.type);
    const int at = static_cast<int>(in[1] & 255), count = static_cast<int>(in[2] & 255);
    if (count == 0) return 0;
    const uint64_t a = extended(in[0], how.type);
    const uint64_t shifted = is_signed(how.type)
                                 ? static_cast<uint64_t>(static_cast<int64_t>(a) >> std::min(at, 63))
                             : at >= 64 ? 0
                                        : a >> at;
    return low_bits(
        count >= bits
            ? shifted
            : extended(sign_extended(low_bits(shifted, count), is_signed(how.type) ? count : 64), how.type),
        bits);
}

// How far left the highest bit has to go to become the top one.
uint64_t run_find(const Compute& how, const uint64_t* in) {
    const uint64_t v = low_bits(in[0], bits_of(how.type));
    return v == 0 ? 0xffffffff : static_cast<uint64_t>(std::countl_zero(v) - (64 - bits_of(how.type)));
}

// The funnel shift: 32 bits of the pair in[1]:in[0].
uint64_t run_funnel(const Compute& how, const uint64_t* in) {
    const uint64_t pair = low_bits(in[1], 32) << 32 | low_bits(in[0], 32);
    const uint64_t given = low_bits(in[2], 32);
    const uint64_t by = how.detail == "wrap" ? given & 31 : std::min<uint64_t>(given, 32);
    return low_bits(how.word == Word::shl ? pair << by >> 32 : pair >> by, 32);
}

// Four bytes out of the eight of in[1]:in[0], chosen by in[2].
uint64_t run_permute(const Compute&, const uint64_t* in) {
    const uint64_t pair = low_bits(in[1], 32) << 32 | low_bits(in[0], 32);
    uint64_t result = 0;
    for (int i = 0; i < 4; ++i) {
        const uint64_t selector = in[2] >> (4 * i) & 15;
        uint64_t byte = pair >> (8 * (selector & 7)) & 255;
        if (selector & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}

uint64_t run_test(const Compute& how, const uint64_t* in) {
    const double x = how.type == Type::f64 ? f64_value(in[0]) : double{f32_value(in[0])};
    if (how.detail == "finite") return std::isfinite(x);
    if (how.detail == "infinite") return std::isinf(x);
    if (how.detail == "number") return !std::isnan(x);
    return std::isnan(x);
}

// --- conversions

double integral(double x, char rounding) {
    switch (rounding) {
        case 'z':
            return std::trunc(x);
        case 'm':
            return std::floor(x);
        case 'p':
            return std::ceil(x);
        default:
            return std::nearbyint(x);
    }
}

uint64_t run_convert(const Compute& how, const uint64_t* in) {
    const Type to = how.type, from = how.from;
    if (!is_float(from) && !is_float(to)) {
        const uint64_t v = extended(in[0], from);
        if (!how.saturate) return low_bits(v, bits_of(to));
        const int bits = bits_of(to);
        const auto x = static_cast<__int128>(is_signed(from) ? static_cast<__int128>(static_cast<int64_t>(v))
                                                             : static_cast<__int128>(v));
        const __int128 most = is_signed(to) ? (__int128{1} << (bits - 1)) - 1 : (__int128{1} << bits) - 1;
        const __int128 least = is_signed(to) ? -(__int128{1} << (bits - 1)) : 0;
        return low_bits(static_cast<uint64_t>(std::clamp(x, least, most)), bits);
    }
    if (!is_float(from)) {
        const uint64_t v = extended(in[0], from);
        if (to == Type::f64)
            return f64_bits(is_signed(from) ? static_cast<double>(static_cast<int64_t>(v))
                                            : static_cast<double>(v));
        const float f = is_signed(from) ? static_cast<float>(static_cast<int64_t>(v)) : static_cast<float>(v);
        return to == Type::bf16 ? bf16_bits(f) : f32_bits(f);
    }
    double x = from == Type::f64   ? f64_value(in[0])
               : from == Type::f32 ? double{flushed(f32_value(in[0]), how.ftz)}
                                   : double{bf16_value(in[0])};
    if (!is_float(to)) {  // saturates by itself; NaN is 0, but of 64 bits the manual promises nothing
        const int bits = bits_of(to);
        if (std::isnan(x)) return 0;
        x = integral(x, how.rounding);
        const double most = is_signed(to) ? std::ldexp(1.0, bits - 1) : std::ldexp(1.0, bits);
        if (x >= most) return low_bits(is_signed(to) ? (uint64_t{1} << (bits - 1)) - 1 : ~uint64_t{0}, bits);
        if (is_signed(to)) {
            if (x < -most) return uint64_t{1} << (bits - 1);
            return low_bits(static_cast<uint64_t>(static_cast<int64_t>(x)), bits);
        }
        return x <= 0 ? 0 : low_bits(static_cast<uint64_t>(x), bits);
    }
    if (how.detail == "integral") x = integral(x, how.rounding);
    if (how.saturate) x = x > 0 ? std::min(x, 1.0) : 0;
    if (to == Type::f64) return f64_bits(x);
    if (to == Type::f32) return f32_bits(flushed(static_cast<float>(x), how.ftz));
    return bf16_bits(static_cast<float>(x));
}

// cvt.rn.bf16x2.f32 d, a, b: a is the upper half.
uint64_t run_convert_pair(const Compute&, const uint64_t* in) {
    return bf16_bits(f32_value(in[0])) << 16 | bf16_bits(f32_value(in[1]));
}

// --- comparisons

uint64_t run_compare(const Compute& how, const uint64_t* in) {
    std::string_view d = how.detail;
    bool result;
    if (is_float(how.type)) {
        const auto number = [&](uint64_t v) {
            return how.type == Type::f64   ? f64_value(v)
                   : how.type == Type::f32 ? double{flushed(f32_value(v), how.ftz)}
                                           : double{bf16_value(v)};
        };
        const double a = number(in[0]), b = number(in[1]);
        const bool unordered = std::isnan(a) || std::isnan(b);
        const bool or_unordered = d.size() == 3 && d.back() == 'u';
        if (or_unordered) d.remove_suffix(1);
        if (d == "num")
            result = !unordered;
        else if (d == "nan")
            result = unordered;
        else if (unordered)
            result = or_unordered;
        else
            result = d == "eq"   ? a == b
                     : d == "ne" ? a != b
                     : d == "lt" ? a < b
                     : d == "le" ? a <= b
                     : d == "gt" ? a > b
                                 : a >= b;
    } else {
        const uint64_t a = extended(in[0], how.type), b = extended(in[1], how.type);
        const bool negative = is_signed(how.type);
        const bool less = negative ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
        result = d == "eq"                ? a == b
                 : d == "ne"              ? a != b
                 : d == "lt" || d == "lo" ? less
                 : d == "le" || d == "ls" ? less || a == b
                 : d == "gt" || d == "hi" ? !less && a != b
                                          : !less;
    }
    if (how.join == "and") return result && in[2] != 0;
    if (how.join == "or") return result || in[2] != 0;
    if (how.join == "xor") return result != (in[2] != 0);
    return result;
}

bool contains(const std::vector<std::string>& words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

// Views of literals, so that they outlive the instruction's words.
template <size_t n>
std::string_view first_of(const std::vector<std::string>& words,
                          const std::array<std::string_view, n>& known) {
    for (const std::string& w : words)
        for (const std::string_view k : known)
            if (w == k) return k;
    return {};
}

Compute basics_of(const std::vector<std::string>& words) {
    Compute c;
    for (const std::string& word : words)
        if (const Type t = type_named(word); t != Type::none) (c.type == Type::none ? c.type : c.from) = t;
    c.ftz = contains(words, "ftz");
    c.saturate = contains(words, "sat");
    c.nan = contains(words, "NaN");
    return c;
}

}  // namespace

Compute compute_of(const std::vector<std::string>& words) {
    struct Family {
        std::string_view name;
        Word word;
        size_t inputs;
        bool of_reals, of_integers;
    };
    static constexpr std::array families{
        Family{"add", Word::add, 2, true, true},      Family{"sub", Word::sub, 2, true, true},
        Family{"mul", Word::mul, 2, true, true},      Family{"div", Word::div, 2, true, true},
        Family{"rem", Word::rem, 2, false, true},     Family{"mad", Word::mad, 3, true, true},
        Family{"fma", Word::fma, 3, true, false},     Family{"neg", Word::neg, 1, true, true},
        Family{"abs", Word::abs, 1, true, true},      Family{"min", Word::min, 2, true, true},
        Family{"max", Word::max, 2, true, true},      Family{"sqrt", Word::sqrt, 1, true, false},
        Family{"rsqrt", Word::rsqrt, 1, true, false}, Family{"rcp", Word::rcp, 1, true, false},
        Family{"ex2", Word::ex2, 1, true, false},     Family{"lg2", Word::lg2, 1, true, false},
        Family{"sin", Word::sin, 1, true, false},     Family{"cos", Word::cos, 1, true, false},
        Family{"tanh", Word::tanh, 1, true, false},   Family{"copysign", Word::copysign, 2, true, false},
        Family{"and", Word::and_, 2, false, true},    Family{"or", Word::or_, 2, false, true},
        Family{"xor", Word::xor_, 2, false, true},    Family{"not", Word::not_, 1, false, true},
        Family{"shl", Word::shl, 2, false, true},     Family{"shr", Word::shr, 2, false, true},
        Family{"popc", Word::popc, 1, false, true},   Family{"clz", Word::clz, 1, false, true},
        Family{"brev", Word::brev, 1, false, true}};
    Compute c = basics_of(words);
    const std::string& w = words[0];
    for (const Family& f : families)
        if (w == f.name) {
            c.word = f.word;
            c.inputs = f.inputs;
            c.part = contains(words, "wide") ? Part::wide : contains(words, "hi") ? Part::high : Part::low;
            for (const char direction : {'z', 'm', 'p'})
                if (contains(words, std::string("r") + direction)) c.rounding = direction;
            if (is_float(c.type) && f.of_reals)
                c.run = c.type == Type::f32    ? (c.rounding == 'n' ? run_f32 : run_rounded)
                        : c.type == Type::f64  ? run_f64
                        : c.type == Type::bf16 ? run_bf16
                                               : run_bf16x2;
            else if (!is_float(c.type) && f.of_integers)
                c.run = run_integer;
            return c;
        }
    const auto as = [&](auto run, size_t inputs) {
        c.run = run;
        c.inputs = inputs;
    };
    static constexpr std::array<std::string_view, 2> wraps{"wrap", "clamp"};
    static constexpr std::array<std::string_view, 4> tests{"finite", "infinite", "number", "notanumber"};
    if (w == "selp") {
        as(run_select, 3);
        c.selects = true;
    }
    if (w == "bfe") as(run_extract, 3);
    if (w == "bfi") as(run_insert, 4);
    if (w == "bfind") as(run_find, 1);
    if (w == "prmt") as(run_permute, 3);
    if (w == "shf") {
        as(run_funnel, 3);
        c.word = words[1] == "l" ? Word::shl : Word::shr;
        c.detail = first_of(words, wraps);
    }
    if (w == "testp") {
        as(run_test, 1);
        c.detail = first_of(words, tests);
    }
    if (w == "cvt") {
        as(run_convert, 1);
        if (c.type == Type::bf16x2) as(run_convert_pair, 2);
        for (const std::string& word : words)
            if (word.size() >= 2 && word[0] == 'r' &&
                (word.size() == 2 || (word.size() == 3 && word[2] == 'i'))) {
                c.rounding = word[1];
                if (word.size() == 3 && is_float(c.type)) c.detail = "integral";
            }
        // Rounding to a narrower real other than to nearest.
        if (is_float(c.type) && is_float(c.from) && c.detail != "integral" && c.rounding != 'n') return {};
    }
    return c;
}

Compute comparison_of(const std::vector<std::string>& words) {
    static constexpr std::array<std::string_view, 18> relations{"eq",  "ne",  "lt",  "le",  "gt",  "ge",
                                                                "lo",  "ls",  "hi",  "hs",  "equ", "neu",
                                                                "ltu", "leu", "gtu", "geu", "num", "nan"};
    static constexpr std::array<std::string_view, 3> joins{"and", "or", "xor"};
    Compute c = basics_of(words);
    c.run = run_compare;
    c.detail = first_of(words, relations);
    c.join = first_of(words, joins);
    c.inputs = c.join.empty() ? 2 : 3;
    return c;
}

}  // namespace longreach::ptx
