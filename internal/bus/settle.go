package bus

import (
	"errors"
	"fmt"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// decodeSettle reads a settle into req.
func decodeSettle(data []byte, req *engine.Request) error {
	req.Verb, req.Cost = engine.Settle, -1
	err := readFields(data, text("id", &req.ID, 1, limits.MaxIDBytes), number("cost", &req.Cost, 0, limits.MaxAmount))
	switch {
	case err != nil:
		return err
	case req.ID == "":
		return invalid("id", "id is missing; want the id of an earlier consume or verify")
	case req.Cost < 0:
		return invalid("cost", "cost is missing; want the final cost, 0 to %d", limits.MaxAmount)
	}
	return nil
}

// settleError returns the error of the wire contract for a settle of the consume with an id, if it is
// about that.
func settleError(id string, err error) error {
	switch {
	case errors.Is(err, engine.ErrIDConflict):
		return &limits.Error{Status: 409, Code: limits.CodeIDConflict, Field: "cost",
			Message: fmt.Sprintf("id %s was already settled with another cost; the first cost stands", quoteText(id))}
	case errors.Is(err, engine.ErrUnknownID):
		return &limits.Error{Status: 404, Code: limits.CodeUnknownID, Field: "id", Message: fmt.Sprintf("no consume or verify with id %s "+
			"was found: none had it, or it is not decided yet (settle again a little later), was charged without the store, "+
			"or is older than 10 minutes", quoteText(id))}
	case errors.Is(err, engine.ErrNothingToSettle):
		return &limits.Error{Status: 409, Code: limits.CodeNothingToSettle, Field: "id",
			Message: fmt.Sprintf("id %s does not belong to an allowed consume or verify; there is nothing to settle", quoteText(id))}
	}
	return err
}
