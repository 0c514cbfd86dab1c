// Lets weights arrive and gradients leave while a pass is still running.
//
// The parameters of a model are cut into segments in the order in which a forward pass first reads them: what
// comes before the layers, each layer, what comes after. A tensor that several layers share is in the segment
// of the first of them. A backward pass completes the gradients of the segments from the last to the first.
#pragma once

#include <cstdint>

namespace longreach::model {

struct Segment {
    int64_t begin = 0, end = 0;  // elements of a flat buffer (FlatParams)
};

class ParameterTraffic {
  public:
    virtual ~ParameterTraffic() = default;
    virtual void need(int64_t segment) = 0;  // weights up to its end are read from now on
    virtual void done(int64_t segment) = 0;  // its gradients are complete for this pass
};

}  // namespace longreach::model
