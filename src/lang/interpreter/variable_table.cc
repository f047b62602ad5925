#include "lang/interpreter/variable_table.h"

#include <algorithm>

namespace espalier::lang {

VariablePtr VariableTable::declare(const std::string& name) {
  auto variable = std::make_shared<Variable>();
  if (!name.empty()) variables_.insert_or_assign(name, variable);
  return variable;
}

VariableTable::Outputs VariableTable::declare_outputs(const Node& node) {
  Outputs out;
  if (const auto* gen = std::get_if<std::shared_ptr<const Gen>>(&node.what)) {
    out.target = declare((*gen)->name);
    if (is_message_open_) open_message_gens_.push_back((*gen)->name);
  } else if (const auto* reasoning = std::get_if<Reasoning>(&node.what)) {
    if (reasoning->gen != nullptr) {
      out.target = declare(reasoning->gen->name);
      out.reasoning = declare(reasoning->gen->name + "_reasoning_content");
    }
  } else if (const auto* select = std::get_if<Select>(&node.what)) {
    out.target = declare(select->name);
  } else if (const auto* scope = std::get_if<ScopeBegin>(&node.what)) {
    out.target = declare(scope->name);
    open_scopes_.push_back(scope->name);
  } else if (const auto* end = std::get_if<ScopeEnd>(&node.what)) {
    std::erase(open_scopes_, end->name);
  } else if (std::holds_alternative<RoleBegin>(node.what)) {
    is_message_open_ = true;
  } else if (std::holds_alternative<RoleEnd>(node.what)) {
    is_message_open_ = false;
    open_message_gens_.clear();
  }
  return out;
}

VariablePtr VariableTable::find(std::string_view name) const {
  const auto it = variables_.find(name);
  return it != variables_.end() ? it->second : nullptr;
}

std::vector<std::string> VariableTable::names() const {
  std::vector<std::string> names;
  for (const auto& [name, variable] : variables_) names.push_back(name);
  return names;
}

Status VariableTable::unknown(std::string_view name) const {
  std::string list;
  for (const auto& [other, variable] : variables_) list += (list.empty() ? "" : ", ") + other;
  return error(StatusCode::kNotFound, "there is no variable \"{}\" (there {})", name,
               list.empty() ? "is none yet" : "are: " + list);
}

Status VariableTable::check_readable(std::string_view name, bool defers_messages) const {
  if (std::ranges::find(open_scopes_, name) != open_scopes_.end())
    return error(StatusCode::kFailedPrecondition,
                 "the var_scope \"{}\" is still open: read it after its end", name);
  if (defers_messages && std::ranges::find(open_message_gens_, name) != open_message_gens_.end())
    return error(StatusCode::kFailedPrecondition,
                 "\"{}\" is part of a message that is still open: with API speculation a chat "
                 "message is written whole, so read it after the role has ended",
                 name);
  return {};
}

void VariableTable::inherit(const VariableTable& parent) {
  variables_ = inherited_ = parent.variables_;
  is_message_open_ = parent.is_message_open_;
}

std::vector<std::pair<std::string, VariablePtr>> VariableTable::added() const {
  std::vector<std::pair<std::string, VariablePtr>> added;
  for (const auto& [name, variable] : variables_) {
    const auto before = inherited_.find(name);
    if (before == inherited_.end() || before->second != variable)
      added.emplace_back(name, variable);
  }
  return added;
}

void VariableTable::fail_added(const Status& why, Location where) const {
  for (const auto& [name, variable] : added()) variable->fail(why, where);
}

}  // namespace espalier::lang
