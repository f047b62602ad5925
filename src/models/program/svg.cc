// The picture of a program: sections as frames, operations as rows with a bar for the bytes that
// they move, and the residual as a line along the rows that read and write it.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "models/program/print.h"
#include "models/program/report.h"

namespace espalier::program {
namespace {

// In pixels.
constexpr int kWidth = 1180, kMargin = 24, kRow = 30, kTitle = 34, kGap = 14, kHeader = 76;
constexpr int kResidualX = 52, kNameX = 78, kNameWidth = 132, kTextX = 226, kBarX = 800;
constexpr int kBarWidth = 160, kBytesX = 1058, kFlopsX = 1146;
constexpr int kTextLine = 20;
// Characters of monospaced text that fit between the name and the bar, and into a whole line.
constexpr size_t kMaxText = 80, kMaxLine = 150;

const char* color_of(OpKind kind) {
  switch (kind) {
    case OpKind::kMatmul:
    case OpKind::kHeadMatmul:
      return "#2f6db5";
    case OpKind::kAttention:
    case OpKind::kLatentPrefill:
    case OpKind::kKvAppend:
    case OpKind::kQkRopeAppend:
      return "#b5562f";
    case OpKind::kMoeRoute:
    case OpKind::kMoeMatmul:
    case OpKind::kMoeCombine:
    case OpKind::kMoeExperts:
    case OpKind::kMoeBlock:
      return "#7a4fa3";
    case OpKind::kNorm:
    case OpKind::kRope:
      return "#3d8a5f";
    case OpKind::kMegakernel:
      return "#a3324f";
    default:
      return "#66707a";
  }
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

int64_t moved(const OpCost& cost) {
  return cost.weight_bytes + cost.activation_bytes + cost.kv_bytes;
}

class Drawing {
 public:
  explicit Drawing(const Report& report) : report_(report), program_(report.program) {
    for (const OpCost& cost : report.costs) most_ = std::max(most_, moved(cost));
    if (!program_.ops.empty() && !program_.ops[0].outputs.empty()) {
      residual_ = program_.buffer(program_.ops[0].outputs[0]).name;
    }
  }

  std::string run() {
    const std::vector<Section> parts = sections(program_);
    y_ = kHeader;
    for (const Section& section : parts) draw(section);
    if (!report_.variants.empty()) draw_variants();
    const int height = y_ + kMargin;
    return fmt::format(
               "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} "
               "{1}' font-family='DejaVu Sans, Helvetica, sans-serif'>\n"
               "<rect width='100%' height='100%' fill='#ffffff'/>\n",
               kWidth, height) +
           header() + body_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }

  std::string header() const {
    return fmt::format(
        "<text x='{}' y='34' font-size='20' font-weight='bold' fill='#20262c'>{}</text>\n"
        "<text x='{}' y='56' font-size='12.5' fill='#5a646e'>{} operations; a step of {} token{} "
        "after {} cached: {} of weights, {} of buffers, {} of KV, {}</text>\n"
        "<text x='{}' y='68' font-size='11' fill='#5a646e'>bytes moved</text>\n"
        "<text x='{}' y='68' font-size='11' text-anchor='end' fill='#5a646e'>operations</text>\n",
        kMargin, escaped(program_.name), kMargin, program_.ops.size(), report_.step.tokens,
        report_.step.tokens == 1 ? "" : "s", report_.step.context,
        bytes_text(report_.total.weight_bytes), bytes_text(report_.total.activation_bytes),
        bytes_text(report_.total.kv_bytes), flops_text(report_.total.flops), kBarX, kFlopsX);
  }

  void draw(const Section& section) {
    const int rows = static_cast<int>(section.last - section.first);
    const int height = kTitle + rows * kRow + 8;
    put("<rect x='{}' y='{}' width='{}' height='{}' rx='8' fill='#f5f7f9' stroke='#d5dbe1'/>\n",
        kMargin, y_, kWidth - 2 * kMargin, height);
    put("<text x='{}' y='{}' font-size='13' font-weight='bold' fill='#20262c'>{}</text>\n",
        kMargin + 14, y_ + 22, title_of(section));
    put("<line x1='{0}' x2='{0}' y1='{1}' y2='{2}' stroke='#9aa5b0' stroke-width='2'/>\n",
        kResidualX, y_ + kTitle, y_ + height - 8);
    for (size_t i = section.first; i < section.last; ++i) {
      draw(i, y_ + kTitle + static_cast<int>(i - section.first) * kRow);
    }
    y_ += height + kGap;
  }

  // What runs instead in some steps: two lines of text each.
  void draw_variants() {
    const int height = kTitle + static_cast<int>(report_.variants.size()) * 2 * kTextLine + 8;
    put("<rect x='{}' y='{}' width='{}' height='{}' rx='8' fill='#ffffff' stroke='#a3324f' "
        "stroke-dasharray='5 4'/>\n",
        kMargin, y_, kWidth - 2 * kMargin, height);
    put("<text x='{}' y='{}' font-size='13' font-weight='bold' fill='#20262c'>instead, where the "
        "device's kernels take the step</text>\n",
        kMargin + 14, y_ + 22);
    int y = y_ + kTitle + 12;
    for (const Variant& variant : report_.variants) {
      put("<text x='{}' y='{}' font-size='12' fill='#5a646e'>in {}, for {}:</text>\n", kMargin + 14,
          y, escaped(variant.when), escaped(variant.replaces));
      put("<text x='{}' y='{}' font-size='11' fill='#20262c' font-family='DejaVu Sans Mono, "
          "monospace'>{}</text>\n",
          kMargin + 30, y + kTextLine, escaped(cut(variant.line, kMaxLine)));
      y += 2 * kTextLine;
    }
    y_ += height + kGap;
  }

  static std::string cut(std::string text, size_t most) {
    return text.size() > most ? text.substr(0, most - 3) + "..." : text;
  }

  // A dot on the residual's line where the operation reads it, a filled one where it writes it.
  void draw_residual(const Op& op, int y) {
    const auto is_residual = [&](const Operand& operand) {
      return program_.buffer(operand).name.starts_with(residual_);
    };
    const bool writes = std::ranges::any_of(op.outputs, is_residual);
    if (!writes && std::ranges::none_of(op.inputs, is_residual)) return;
    put("<line x1='{}' x2='{}' y1='{}' y2='{}' stroke='#9aa5b0' stroke-width='1.5'/>\n", kResidualX,
        kNameX, y, y);
    put("<circle cx='{}' cy='{}' r='4.5' fill='{}' stroke='#56616c' stroke-width='1.5'/>\n",
        kResidualX, y, writes ? "#56616c" : "#ffffff");
  }

  void draw(size_t index, int y) {
    const Op& op = program_.ops[index];
    const OpCost& cost = report_.costs[index];
    draw_residual(op, y + kRow / 2 - 2);
    put("<rect x='{}' y='{}' width='{}' height='{}' rx='5' fill='{}'/>\n", kNameX, y, kNameWidth,
        kRow - 5, color_of(op.kind));
    put("<text x='{}' y='{}' font-size='12.5' fill='#ffffff' text-anchor='middle'>{}</text>\n",
        kNameX + kNameWidth / 2, y + 17, op_name(op.kind));
    put("<text x='{}' y='{}' font-size='11' fill='#20262c' font-family='DejaVu Sans Mono, "
        "monospace'>{}</text>\n",
        kTextX, y + 17, escaped(text_of(op)));
    const auto share = static_cast<double>(moved(cost)) / static_cast<double>(most_);
    put("<rect x='{}' y='{}' width='{:.1f}' height='9' rx='2' fill='{}' opacity='0.75'/>\n", kBarX,
        y + 9, std::max(1.0, kBarWidth * share), color_of(op.kind));
    put("<text x='{}' y='{}' font-size='11' text-anchor='end' fill='#20262c'>{}</text>\n", kBytesX,
        y + 17, bytes_text(moved(cost)));
    if (cost.flops == 0) return;
    put("<text x='{}' y='{}' font-size='11' text-anchor='end' fill='#5a646e'>{}</text>\n", kFlopsX,
        y + 17, flops_text(cost.flops));
  }

  // The line of the operation without its name, cut where it does not fit.
  std::string text_of(const Op& op) const {
    std::string text = to_string(program_, op);
    const size_t begin = text.find_first_not_of(' ', op_name(op.kind).size());
    text = begin == std::string::npos ? "" : text.substr(begin);
    if (const size_t attributes = text.find("  {");
        attributes != std::string::npos && text.size() > kMaxText) {
      text.resize(attributes);
    }
    return cut(std::move(text), kMaxText);
  }

  const Report& report_;
  const Program& program_;
  std::string residual_ = "hidden", body_;
  int64_t most_ = 1;
  int y_ = 0;
};

}  // namespace

std::string to_svg(const Report& report) { return Drawing(report).run(); }

}  // namespace espalier::program
