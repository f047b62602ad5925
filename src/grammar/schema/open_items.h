// The arrays that an unfinished JSON text leaves open: their complete items, and whether the item
// under way may still become equal to one of these. White space, escapes and the spelling of
// numbers do not matter; members of objects are compared in the order in which they were read.
//
// Thread safety: none; copies share the complete items, so they belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::grammar {

// Text that is no JSON may leave wrong arrays open; it does no harm but that more items may seem
// equal.
class OpenItems {
 public:
  // Reads the next bytes of the text.
  void read(std::string_view bytes);

  // Whether some open array has a complete item.
  bool any_complete() const;
  // Whether an open array around the innermost one has a complete item.
  bool any_complete_outside() const;
  // Returns whether in no open array the item under way may equal a complete one. A complete item
  // that no comma follows is not under way.
  bool all_differ() const { return differ(false); }
  // The same, and no open array with complete items is between two items.
  bool all_differ_inside() const { return differ(true); }

  bool in_string() const { return mode_ != Mode::kOutside; }
  // The number that the text ends with, as far as it is read; empty: it ends with something else.
  std::string_view number() const { return number_; }
  size_t num_bytes() const;  // held; an estimate

 private:
  enum class Mode : uint8_t { kOutside, kString, kEscape };
  // Texts without white space, with one spelling of each string and number.
  using Texts = std::set<std::string, std::less<>>;
  struct Open {
    bool array = false;
    bool between = false;             // an array: an item is complete, and no comma has followed
    size_t begin = 0;                 // an array: where the item under way begins in text_
    std::shared_ptr<Texts> items;     // shared with copies of this object, and then not changed
    std::vector<std::string> recent;  // items that were added while `items` was shared
  };

  void read_byte(char c);
  void read_escape(char c);
  void read_outside(char c);
  void end_number();
  void end_value();
  void open(char bracket);
  void close(char bracket);
  void end_item(Open& array);
  void append(char c) {
    if (num_arrays_ > 0) text_ += c;
  }
  void append_char(uint32_t code_point);
  bool differ(bool inside) const;
  bool may_repeat(const Open& object) const;
  bool may_equal(const Open& array) const;
  bool may_become(std::string_view item, std::string_view begun) const;

  Mode mode_ = Mode::kOutside;
  uint32_t high_surrogate_ = 0;  // the first half of a character; 0: none
  std::string escape_, number_;  // under way
  std::string text_;             // from the begin of the outermost array's item on
  std::vector<Open> open_;       // arrays and objects
  size_t num_arrays_ = 0, item_bytes_ = 0;
};

// The open items of a text that grows, and shrinks by a few steps. A copy reads its text anew, so
// that copies may be used by different threads.
class ItemsOfText {
 public:
  ItemsOfText() = default;
  ItemsOfText(const ItemsOfText&) {}
  ItemsOfText& operator=(const ItemsOfText& other) {
    if (this != &other) kept_.clear();
    return *this;
  }
  ItemsOfText(ItemsOfText&&) = default;
  ItemsOfText& operator=(ItemsOfText&&) = default;
  ~ItemsOfText() = default;

  // Returns the items of the text, which continues the text of the last call that shrink_to() has
  // not cut. The result is valid until the next call of a function.
  const OpenItems& at(std::string_view text);
  void shrink_to(size_t size);

 private:
  std::vector<std::pair<size_t, OpenItems>> kept_;  // by the size of the text, ascending
};

}  // namespace espalier::grammar
