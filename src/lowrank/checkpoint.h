// What a run of compress() that may be interrupted keeps of its finished layers, so that the next one goes on
// from there.
//
// The file: 8 bytes of magic, the format's version (u32), then records: their length and XXH3 checksum (u64
// each) and their bytes. The first holds the run's settings and every layer's ranks, each other one finished
// layer. Numbers are little-endian. Appended record by record: a run that dies in the middle of one leaves it
// incomplete, and it is dropped.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lowrank/compress.h"
#include "lowrank/shrunk_model.h"

namespace narrows {

struct FinishedLayer {
  ShrunkLayer maps;
  CompressedLayer report;
  std::int64_t raised = 0;  // eigenvalues, of this layer
};

// All that the result depends on, by the names that an error gives to it: program, machine, model, text and
// options.
using RunSettings = std::vector<std::pair<std::string, std::string>>;
RunSettings run_settings(const LoadedModel& model, std::string_view text, const CompressOptions& options);

// "the same command goes on from layer 7", for the end of an error's line.
std::string goes_on(std::int64_t finished, std::int64_t layers);

// Throws Error unless `layer` is what the model's layer `number`, which is as it was loaded, becomes with
// these ranks and this type. Completes layer.maps.sizes.
void check_finished(LoadedModel& model, int number, const CompressedLayer& ranks, DType type,
                    FinishedLayer& layer);

// Holds the file for itself: a second run finds it in use.
class Checkpoint {
 public:
  // Reads what is at `path`; found() is false if nothing is. Throws Error if the file is none of these, of
  // another version or of other settings (naming the first that differs), or in use. Sizes inside layers are
  // not compared with a model's: check_finished.
  Checkpoint(std::string path, RunSettings settings);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint();

  const std::string& path() const { return path_; }
  bool found() const { return fd_ >= 0; }
  const std::vector<CompressedLayer>& ranks() const { return ranks_; }
  std::vector<FinishedLayer>& layers() {
    return layers_;
  }  // that were found: the first ones of the model, in order

  // Where nothing was found: makes the file, whole or not at all.
  void begin(const std::vector<CompressedLayer>& ranks);
  // The next layer. Durable when it returns; throws Error if it cannot be written, and the layers before
  // stay.
  void add(const ShrunkLayer& maps, const CompressedLayer& report, std::int64_t raised);
  void remove();

 private:
  bool open();
  void read();

  std::string path_;
  RunSettings settings_;
  std::vector<CompressedLayer> ranks_;
  std::vector<FinishedLayer> layers_;
  int fd_ = -1;
  std::size_t end_ = 0;     // of the last whole record
  std::int64_t count_ = 0;  // layers in the file
};

}  // namespace narrows
