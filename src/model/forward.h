// The forward pass: one for every architecture.
#pragma once
#include <span>

#include "base/aligned.h"
#include "base/threads.h"
#include "model/attention_policy.h"
#include "model/batch.h"
#include "model/profile.h"
#include "model/spec.h"
#include "model/weights.h"

namespace narrows {

// Activations of a forward pass. Rows are the batch's tokens; buffers are kept from pass to pass.
struct Workspace {
  AlignedVector<float> x;       // [rows][d]       the residual stream
  AlignedVector<float> h;       // [rows][d]       normed input of a block
  AlignedVector<float> qkv;     // [rows][site out]
  AlignedVector<float> mixed;   // [rows][heads·d_vo]
  AlignedVector<float> block;   // [rows][d]       what a block adds to x
  AlignedVector<float> inner;   // [rows][site out]  feed-forward
  AlignedVector<float> ffn;     // [rows][d]       feed-forward of a parallel block
  AlignedVector<float> shares;  // [rows][experts] of a mixture
  AlignedVector<float> gathered, given;  // [rows · experts used][d]  what experts read, and what they give
  AlignedVector<float> cosines, sines;  // [rotary][rows][frequency rows · pairs]
  SiteScratch sites;
  Profile* profile = nullptr;   // gains the time of each operation, if set
};

// Which rows of a batch need logits.
struct LogitRows {
  std::span<const std::int64_t> rows;
  float* logits;  // [rows.size()][vocab]
};

// Layers [begin, end) of the model.
struct LayerRange {
  int begin, end;
};

// Runs the batch through the model. Its tokens must be valid ids; each run's cache gains them.
void forward(const ModelSpec& spec, const Weights& weights, AttentionPolicy& attention, ThreadPool& pool,
             Workspace& workspace, const Batch& batch, const LogitRows& wanted);

// A part of that, for whoever watches the model layer by layer: begins with the embedding where layers.begin is 0, else
// with the residual stream in workspace.x; leaves it there; passes the head if rows are wanted.
void forward(const ModelSpec& spec, const Weights& weights, AttentionPolicy& attention, ThreadPool& pool,
             Workspace& workspace, const Batch& batch, const LogitRows& wanted, LayerRange layers);

}  // namespace narrows
