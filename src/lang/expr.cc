#include "lang/expr.h"

namespace espalier::lang {
namespace {

template <typename T>
Expr one(T what, Location where) {
  return Expr(Node{std::move(what), where});
}

Expr gen_of(std::string name, GenOptions options, Location where) {
  return one(std::make_shared<const Gen>(Gen{std::move(name), std::move(options)}), where);
}

}  // namespace

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
  }
  return "";
}

Result<Role> parse_role(std::string_view name) {
  for (Role role : {Role::kSystem, Role::kUser, Role::kAssistant})
    if (name == role_name(role)) return role;
  return fail(invalid_argument("no role is named \"{}\": use system, user or assistant", name));
}

Expr::Expr(const char* text, Where where) : Expr(std::string(text), where) {}
Expr::Expr(std::string_view text, Where where) : Expr(std::string(text), where) {}
Expr::Expr(std::string text, Where where) {
  if (!text.empty()) nodes_.push_back({Text{std::move(text)}, where});
}
Expr::Expr(Value value, Where where) {
  if (value.is_constant()) {
    if (!value.text().empty()) nodes_.push_back({Text{value.text()}, where});
  } else {
    nodes_.push_back({Reference{std::move(value)}, where});
  }
}

Expr& Expr::operator+=(Expr other) {
  if (nodes_.empty()) {
    nodes_ = std::move(other.nodes_);
  } else {
    nodes_.insert(nodes_.end(), std::make_move_iterator(other.nodes_.begin()),
                  std::make_move_iterator(other.nodes_.end()));
  }
  return *this;
}

Expr operator+(Expr left, Expr right) {
  left += std::move(right);
  return left;
}

Expr gen(std::string name, GenOptions options, Location where) {
  if (options.choices.empty()) return gen_of(std::move(name), std::move(options), where);
  return select(std::move(name), std::move(options.choices), options.choices_method, where);
}

Expr gen_int(std::string name, GenOptions options, Location where) {
  options.dtype = Dtype::kInt;
  return gen_of(std::move(name), std::move(options), where);
}

Expr gen_string(std::string name, GenOptions options, Location where) {
  options.dtype = Dtype::kString;
  return gen_of(std::move(name), std::move(options), where);
}

Expr select(std::string name, std::vector<std::string> choices, ChoicesMethod method,
            Location where) {
  return one(Select{std::move(name), std::move(choices), method}, where);
}

Expr image(std::string path, Location where) {
  return one(Media{Media::Kind::kImage, std::move(path), 0}, where);
}

Expr video(std::string path, int32_t num_frames, Location where) {
  return one(Media{Media::Kind::kVideo, std::move(path), num_frames}, where);
}

Expr separate_reasoning(Expr gen_expr, std::string model_type, Location where) {
  Reasoning reasoning{std::move(model_type), nullptr};
  if (gen_expr.nodes().size() == 1) {
    const auto* inner = std::get_if<std::shared_ptr<const Gen>>(&gen_expr.nodes()[0].what);
    if (inner != nullptr) reasoning.gen = *inner;
  }
  return one(std::move(reasoning), where);  // without a gen the stream refuses it, at this line
}

Expr role(Role role, Expr content, Location where) {
  Expr all = one(RoleBegin{role}, where);
  all += std::move(content);
  all += one(RoleEnd{role}, where);
  return all;
}

Expr system(Expr content, Location where) { return role(Role::kSystem, std::move(content), where); }
Expr user(Expr content, Location where) { return role(Role::kUser, std::move(content), where); }
Expr assistant(Expr content, Location where) {
  return role(Role::kAssistant, std::move(content), where);
}

Expr system_begin(Location where) { return one(RoleBegin{Role::kSystem}, where); }
Expr system_end(Location where) { return one(RoleEnd{Role::kSystem}, where); }
Expr user_begin(Location where) { return one(RoleBegin{Role::kUser}, where); }
Expr user_end(Location where) { return one(RoleEnd{Role::kUser}, where); }
Expr assistant_begin(Location where) { return one(RoleBegin{Role::kAssistant}, where); }
Expr assistant_end(Location where) { return one(RoleEnd{Role::kAssistant}, where); }

Expr join(const std::vector<Value>& values, std::string_view separator, Location where) {
  Expr all;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) all += Expr(separator, where);
    all += Expr(values[i], where);
  }
  return all;
}

}  // namespace espalier::lang
