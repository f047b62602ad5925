#include "checkpoint/e2m1_reader.h"

namespace espalier {
namespace {

class E2m1Reader final : public TensorReader {
 public:
  E2m1Reader(const std::byte* codes, int64_t columns, const E2m1Scales& scales)
      : codes_(codes), columns_(columns), scales_(scales) {}

  void read(int64_t first, std::span<float> out) const override {
    constexpr float kSizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int64_t at = first; float& value : out) {
      const int code = static_cast<int>(codes_[at / 2]) >> (at % 2 * 4) & 15;
      // Rows are whole blocks, so blocks are counted across them.
      const auto scale = static_cast<uint8_t>(scales_.data[at / scales_.block]);
      const float size = kSizes[code & 7] * scales_.values[scale];
      value = code < 8 ? size : -size;
      ++at;
    }
  }

  std::optional<StoredInt4> int4() const override {
    if (!scales_.nvfp4) return std::nullopt;
    return StoredInt4{.order = StoredInt4::Order::kRows,
                      .data = codes_,
                      .line_bytes = columns_ / 2,
                      .group = static_cast<int32_t>(scales_.block),
                      .e4m3_scales = scales_.data,
                      .scale_of_all = scales_.of_all};
  }

 private:
  const std::byte* const codes_;
  const int64_t columns_;
  const E2m1Scales scales_;
};

}  // namespace

std::shared_ptr<const TensorReader> make_e2m1_reader(const std::byte* codes, int64_t columns,
                                                     const E2m1Scales& scales) {
  return std::make_shared<E2m1Reader>(codes, columns, scales);
}

}  // namespace espalier
