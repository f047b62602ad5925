// Files, uploads and batches of one server: POST /v1/files, /v1/uploads, /v1/batches and what runs
// behind them. Internal to the room.
#pragma once

#include <filesystem>
#include <memory>

#include "server/batches/batch_runner.h"
#include "server/batches/batch_store.h"
#include "server/batches/file_store.h"
#include "server/batches/upload_store.h"

namespace espalier::server {

// Thread-safe.
struct Batches {
  // Opens the folder; what it has unfinished goes on with runner.start().
  static Result<std::unique_ptr<Batches>> open(const std::filesystem::path& folder,
                                               int64_t max_bytes, BatchTarget target,
                                               BatchSettings settings) {
    ESP_ASSIGN_OR_RETURN(auto opened, FileStore::open(folder, max_bytes));
    ESP_ASSIGN_OR_RETURN(auto parts, UploadStore::open(folder / "uploads", *opened));
    settings.delete_expired = [&store = *parts] { return store.delete_expired(); };
    return std::unique_ptr<Batches>(
        new Batches(std::move(opened), std::move(parts), std::move(target), settings));
  }

  const std::unique_ptr<FileStore> files;
  const std::unique_ptr<UploadStore> uploads;
  BatchStore store;
  BatchRunner runner;

 private:
  Batches(std::unique_ptr<FileStore> opened, std::unique_ptr<UploadStore> parts, BatchTarget target,
          BatchSettings settings)
      : files(std::move(opened)),
        uploads(std::move(parts)),
        store(*files),
        runner(*files, store, std::move(target), settings) {}
};

}  // namespace espalier::server
