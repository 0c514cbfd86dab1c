#define DOCTEST_CONFIG_IMPLEMENT  // what WITH_MAIN implies where doctest.h is not precompiled
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
