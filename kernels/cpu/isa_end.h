// Closes the region opened by isa_begin.h. No include guard.
}  // namespace longreach::LONGREACH_ISA
#if defined(LONGREACH_ISA_AVX512) || defined(LONGREACH_ISA_AVX2) || defined(LONGREACH_ISA_NEON_BF16)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
