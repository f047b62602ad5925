#include "lang/interpreter/variable_table.h"

#include <gtest/gtest.h>

namespace espalier::lang {
namespace {

Node gen_node(std::string name) {
  return {std::make_shared<const Gen>(Gen{.name = std::move(name)}), {}};
}

TEST(VariableTable, PrimitivesDeclareWhatTheyFill) {
  VariableTable table;
  EXPECT_EQ(table.declare_outputs({Text{"text"}, {}}).target, nullptr);
  const auto gen = table.declare_outputs(gen_node("a"));
  EXPECT_EQ(table.find("a"), gen.target);
  EXPECT_NE(table.declare_outputs(gen_node("")).target, nullptr);  // filled, without a name
  const auto reasoning = table.declare_outputs(
      {Reasoning{"qwen3", std::make_shared<const Gen>(Gen{.name = "b"})}, {}});
  EXPECT_EQ(table.find("b_reasoning_content"), reasoning.reasoning);
  EXPECT_EQ(table.names(), (std::vector<std::string>{"a", "b", "b_reasoning_content"}));
  EXPECT_EQ(table.unknown("c").message(),
            "there is no variable \"c\" (there are: a, b, b_reasoning_content)");
}

TEST(VariableTable, ALaterVariableReplacesAnEarlierOne) {
  VariableTable table;
  const VariablePtr first = table.declare("a");
  EXPECT_NE(table.declare("a"), first);
  EXPECT_NE(table.find("a"), first);
}

TEST(VariableTable, WhatTheReaderItselfMustCompleteIsNotReadable) {
  VariableTable table;
  table.declare_outputs({ScopeBegin{"s"}, {}});
  EXPECT_EQ(table.check_readable("s", false).code(), StatusCode::kFailedPrecondition);
  table.declare_outputs({ScopeEnd{"s"}, {}});
  EXPECT_TRUE(table.check_readable("s", false).ok());

  table.declare_outputs({RoleBegin{Role::kAssistant}, {}});
  table.declare_outputs(gen_node("g"));
  EXPECT_TRUE(table.check_readable("g", false).ok());
  EXPECT_EQ(table.check_readable("g", true).code(), StatusCode::kFailedPrecondition);
  table.declare_outputs({RoleEnd{Role::kAssistant}, {}});
  EXPECT_TRUE(table.check_readable("g", true).ok());
}

TEST(VariableTable, ABranchAddsToWhatItInherited) {
  VariableTable parent, branch;
  parent.declare("kept");
  parent.declare("changed");
  branch.inherit(parent);
  EXPECT_TRUE(branch.added().empty());
  const VariablePtr changed = branch.declare("changed");
  const VariablePtr added = branch.declare("new");
  const auto all = branch.added();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].second, changed);
  EXPECT_EQ(all[1].second, added);

  branch.fail_added(error(StatusCode::kAborted, "dropped"), {});
  EXPECT_TRUE(changed->ready());
  EXPECT_TRUE(added->ready());
  EXPECT_FALSE(parent.find("kept")->ready());
  EXPECT_FALSE(parent.find("changed")->ready());
}

}  // namespace
}  // namespace espalier::lang
