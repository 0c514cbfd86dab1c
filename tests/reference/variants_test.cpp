#include <doctest/doctest.h>
#include "reference/parameters.h"
