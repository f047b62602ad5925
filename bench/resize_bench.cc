// How long a picture takes to be resized, and resized and normalised, on one thread: called by
// bench/resize, which compares pixels and times with Pillow's.
//
//   resize_bench bicubic 640 480 336 336
//
// prints the name of the passes, seconds of processor time of both (the least of some runs), and
// the FNV-1a of the pixels. The picture is that of tools/goldens/make_media_goldens.py.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <string_view>

#include "media/drawn.h"
#include "media/processor.h"
#include "media/resize.h"

namespace espalier {
namespace {

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Of runs that take a second together.
double least_seconds(const std::function<void()>& run) {
  double least = std::numeric_limits<double>::max(), sum = 0;
  for (int i = 0; i < 5 || sum < 1; ++i) {
    const double begin = processor_seconds();
    run();
    const double took = processor_seconds() - begin;
    least = std::min(least, took);
    sum += took;
  }
  return least;
}

int measure(std::string_view name, const Image& picture, int32_t width, int32_t height) {
  const Resample filter = name == "bicubic" ? Resample::kBicubic : Resample::kBilinear;
  // CLIP's.
  const ImageProcessorSpec spec{.mean = {0.48145466f, 0.4578275f, 0.40821073f},
                                .std = {0.26862954f, 0.26130258f, 0.27577711f}};
  for (const ResizePasses& passes : usable_resize_passes()) {
    Image made;
    float sum = 0;
    const double resized =
        least_seconds([&] { made = resize_by(passes, picture, width, height, filter); });
    const double both = least_seconds([&] {
      sum += normalize(resize_by(passes, picture, width, height, filter), spec).values[0];
    });
    if (sum != sum) return 1;
    fmt::print("{} {:.6f} {:.6f} {:016x}\n", passes.name, resized, both, test::fnv(made.rgb));
  }
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  int sides[4] = {};
  for (int i = 0; i < 4 && argc == 6; ++i) sides[i] = std::atoi(argv[i + 2]);
  const bool all = std::all_of(sides, sides + 4, [](int side) { return side > 0; });
  if (!all) {
    std::fprintf(stderr,
                 "usage: resize_bench bicubic|bilinear WIDTH HEIGHT NEW_WIDTH NEW_HEIGHT\n");
    return 2;
  }
  return espalier::measure(argv[1], espalier::test::drawn(sides[0], sides[1]), sides[2], sides[3]);
}
