// For tests that need a device: without one they skip, with a message.
#pragma once

#include <gtest/gtest.h>

#include "tensor/cuda/device.h"

#define ESPALIER_REQUIRE_DEVICE()                                     \
  do {                                                                \
    if (const auto device = ::espalier::cuda::open_device(); !device) \
      GTEST_SKIP() << "needs a GPU: " << device.error().message();    \
  } while (false)
