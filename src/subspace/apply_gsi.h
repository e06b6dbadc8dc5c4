// Putting gated sites into a model, and finding them again.
#pragma once
#include <string>
#include <vector>

#include "model/loaded_model.h"
#include "narrows/methods.h"
#include "subspace/gated_site.h"

namespace narrows {

LoadedModel& loaded(Model& model);  // throws Error if it was not loaded with its weights

struct NamedGate {
  std::string name;
  SiteKind kind;
  int layer;
  GatedSite* site;
};
std::vector<NamedGate> gated_sites(Model& model);

// Dense sites again; not after apply_plan(), which gives their memory back.
void make_dense(LoadedModel& model);

}  // namespace narrows
