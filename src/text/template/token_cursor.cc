#include "text/template/token_cursor.h"

#include "text/template/value.h"

namespace espalier::jinja {
namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return fmt::format("the string '{}'", token.text);
    default:
      return fmt::format("'{}'", token.text);
  }
}

}  // namespace

Status TokenCursor::wrong(std::string_view what) const {
  return template_error(fmt::format("line {}: {}", current().line, what));
}

Status TokenCursor::unexpected(std::string_view wanted) const {
  return wrong(fmt::format("expected {}, got {}", wanted, describe(current())));
}

bool TokenCursor::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  advance();
  return true;
}

bool TokenCursor::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  advance();
  return true;
}

Status TokenCursor::expect_operator(std::string_view op) {
  return skip_operator(op) ? Status() : unexpected(fmt::format("'{}'", op));
}

Status TokenCursor::expect_kind(TokenKind kind, std::string_view described) {
  if (current().kind != kind) return unexpected(described);
  advance();
  return {};
}

Result<std::string> TokenCursor::expect_name() {
  if (current().kind != TokenKind::kName) return fail(unexpected("a name"));
  std::string name = current().text;
  advance();
  return name;
}

Status TokenCursor::enter(std::string_view construct) {
  if (++nesting_ <= kNestingMax) return {};
  return wrong(fmt::format("{} nested too deeply", construct));
}

}  // namespace espalier::jinja
