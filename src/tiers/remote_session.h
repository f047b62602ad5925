// One connection to a store of pages elsewhere, as RemotePageStore uses it: blocking calls with
// deadlines, each for many pages in one exchange. A protocol (Redis, ...) implements it.
//
// Not thread-safe, but for interrupt(). A call that fails leaves the connection closed.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "seams/page_name.h"

namespace espalier {

// A page with its header, as it is stored (seal_slot, disk_format.h).
struct SealedPage {
  PageName name;
  std::span<const std::byte> bytes;
};

class RemoteSession {
 public:
  // Receives what read() finds.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    virtual size_t page_bytes() const = 0;  // with the header
    // Where the bytes of the next page go. They are not touched by the session from received() on.
    virtual std::span<std::byte> buffer() = 0;
    enum class Outcome { kFound, kAbsent, kWrongSize };
    // What became of the page names[index], whose bytes are in the last buffer().
    virtual void received(size_t index, Outcome outcome) = 0;
  };

  virtual ~RemoteSession() = default;

  // Connects, and lets the server accept us. Failures say what to do.
  virtual Status open() = 0;
  virtual void close() = 0;
  virtual bool is_usable() const = 0;  // open, and the server has not closed it
  // From any thread: what waits fails, and every call from then on.
  virtual void interrupt() = 0;

  // How many leading pages are there; they count as used.
  virtual Result<size_t> look_up(std::span<const PageName> names, TimePoint deadline) = 0;
  // Reads pages into the receiver, in their order.
  virtual Status read(std::span<const PageName> names, TimePoint deadline, Receiver& receiver) = 0;
  // Stores pages, and sets which the server has taken; `refusal` is why it has refused the last.
  virtual Status write(std::span<const SealedPage> pages, TimePoint deadline,
                       std::vector<bool>& taken, std::string& refusal) = 0;
  virtual Status erase(std::span<const PageName> names, TimePoint deadline) = 0;
  virtual Status clear(TimePoint deadline) = 0;  // all pages of the scope
};

}  // namespace espalier
