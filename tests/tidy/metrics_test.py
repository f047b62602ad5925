#!/usr/bin/env python3
"""What metrics.py counts, on samples small enough to count by hand."""
import unittest

import metrics

SAMPLE = """\
#define BROKEN(x) { x
namespace a::b {
namespace {

constexpr int kTable[] = {1, 2, 3};
enum class Kind : uint8_t { kOne, kTwo };

// A comment with a brace { and a call f();
template <typename T, int kN = 4>
std::vector<T> make(const char* text = "}{",
                    char c = '{') {
  const auto inner = [&](int x) {
    return x;
  };
  return {};
}

}  // namespace

class Widget final : public Base<Widget, 3> {
 public:
  explicit Widget(int size) : Base(size), size_{size}, names_({"a", "b"}) {
    if (size == 0) return;
  }
  ~Widget() override;
  int size() const { return size_; }
  void set(int a, int b);
  void set(int a);
  Widget(const Widget&) = delete;
  bool operator==(const Widget& other) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Widget& w) { return out; }
  using Map = std::map<int, std::vector<int>>;
  static constexpr int kLimit = 5;

 private:
  struct Part {
    int x = 0, y = 0;
    std::array<int, 2> both{1, 2};
  };
  int size_ = 0;
  std::map<int, std::string> names_{{1, "one"}};
  std::function<void(int, int)> callback_;
  const char* const text_ = "int f() {";
};

Widget::~Widget() {}

__global__ void __launch_bounds__(256, 2)
    kernel(float* out, int n) {
  out[n] = 1'000.0f;
}

bool operator<(const Part& a, const Part& b) { return a.x < b.x; }

auto trailing(int x) -> std::vector<int> {
  return R"({ not code })";
}
}  // namespace a::b
"""


class MetricsTest(unittest.TestCase):
    def setUp(self):
        self.parsed = metrics.Parser("src/net/sample.cc", SAMPLE)

    def test_functions_and_their_lengths(self):
        lengths = {f.name: f.lines for f in self.parsed.functions}
        self.assertEqual(lengths, {"make": 8, "Widget": 3, "size": 1, "operator<<": 1, "~Widget": 1,
                                   "kernel": 4, "operator<": 1, "trailing": 3})

    def test_classes_their_methods_and_fields(self):
        found = {c.name: (c.lines, len(c.methods), c.fields) for c in self.parsed.classes}
        # Widget, ~Widget, size, set (its overloads are one name) and operator==.
        self.assertEqual(found["Widget"], (25, 5, 4))
        self.assertEqual(found["Part"], (4, 0, 3))
        self.assertEqual(len(found), 2)

    def test_the_table_and_the_limits(self):
        long = metrics.Function("f", "src/net/n.cc", 1, 71)
        record = metrics.Class("Config", "src/net/n.h", 1, 30, {"resolve"}, 40)
        engine = metrics.Class("Loop", "src/net/n.h", 1, 201, {str(i) for i in range(31)}, 21)
        found = metrics.over_limits([long], [record, engine])
        self.assertEqual({(key[1], key[2]): value for key, value, _ in found},
                         {("lines", "f"): 71, ("class-lines", "Loop"): 201, ("methods", "Loop"): 31,
                          ("fields", "Loop"): 21})
        text = "\n".join(metrics.table([long] + self.parsed.functions, self.parsed.classes + [engine]))
        self.assertIn("over 70    3 / 71 / 11.11 % (1)", text)
        self.assertIn("Loop: 201 lines, 31 methods + 21 fields", text)

    def test_comment_lines_are_counted_without_blank_lines(self):
        self.assertEqual(metrics.read_limits("# a\n\nnet lines f 71\n"), {("net", "lines", "f"): 71})


if __name__ == "__main__":
    unittest.main()
