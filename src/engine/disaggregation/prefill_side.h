// The role of a prefill server: computed pages go into rooms, which a page server sends.
//
// Pages are copied as soon as a step has computed them, so they need no lock and the cache may give
// them to other prompts: into staging memory on their device, layer by layer while the step runs
// where the device can, or, where there is none or it is full, on the loop's thread into the host's
// memory.
#pragma once

#include <unordered_map>

#include "engine/disaggregation/disaggregation.h"
#include "transfer/page_server.h"
#include "transfer/room.h"

namespace espalier {

struct PrefillSideConfig {
  transfer::PageServerConfig server;
  PageNameScope name_scope;
  int64_t bytes_max = 0;           // of pages that wait to be sent
  PageStaging* staging = nullptr;  // borrowed; null: none
};

class PrefillSide final : public Disaggregation {
 public:
  // Borrows copier and clock. Fails where the bootstrap port cannot be had.
  static Result<std::unique_ptr<PrefillSide>> start(const PrefillSideConfig& config,
                                                    PageCopier& copier, const Clock& clock);

  Handoff handoff() const override { return Handoff::kGive; }
  Status begin(const Prompt& prompt) override;
  void on_launch(const ForwardBatch& batch) override;
  void on_prefilled(SequenceId id, const PrefillProgress& progress) override;
  void on_finish(SequenceId id, const FinishReason& reason) override;
  void drain(Duration timeout) override;
  DisaggregationStats stats() const override;

 private:
  PrefillSide(const PrefillSideConfig& config, PageCopier& copier, const Clock& clock);

  struct Export {
    transfer::RoomKey key;
    std::shared_ptr<transfer::Room> room;  // shared with its reader
    int32_t num_pages = 0;                 // added to the room
    int32_t next_logprob = 0;              // a position
    bool has_token = false;
  };
  static int32_t first_wanted(const Export& prompt);  // page that is not in the room yet
  static void add_staged(Export& prompt, int32_t first, std::unique_ptr<StagedPages> staged);
  void add_pages(Export& prompt, const PrefillProgress& progress) const;
  static void add_logprobs(Export& prompt, const PrefillProgress& progress);

  const PrefillSideConfig config_;
  PageCopier& copier_;
  transfer::RoomTable rooms_;
  std::unordered_map<SequenceId, Export> exports_;
  std::unique_ptr<transfer::PageServer> server_;  // last: its threads read the rooms
};

}  // namespace espalier
