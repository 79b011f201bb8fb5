package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// maxSettles bounds the settles under way. There may be many, because they share transactions.
const maxSettles = 4096

func (s *Service) settle(ctx context.Context, data []byte) (any, error) {
	req, err := decodeSettle(data)
	if err != nil {
		return nil, err
	}
	d, err := s.cfg.Engine.Settle(ctx, req.ID, req.Cost)
	switch {
	case errors.Is(err, engine.ErrIDConflict):
		return nil, &limits.Error{Status: 409, Code: limits.CodeIDConflict, Field: "cost",
			Message: fmt.Sprintf("id %s was already settled with another cost; the first cost stands", quoteText(req.ID))}
	case errors.Is(err, engine.ErrUnknownID):
		return nil, &limits.Error{Status: 404, Code: limits.CodeUnknownID, Field: "id", Message: fmt.Sprintf("no consume or verify with id %s "+
			"was found: none had it, or it is not decided yet (settle again a little later), was charged without the store, "+
			"or is older than 10 minutes", quoteText(req.ID))}
	case errors.Is(err, engine.ErrNothingToSettle):
		return nil, &limits.Error{Status: 409, Code: limits.CodeNothingToSettle, Field: "id",
			Message: fmt.Sprintf("id %s does not belong to an allowed consume or verify; there is nothing to settle", quoteText(req.ID))}
	case err != nil:
		return nil, err
	}
	// What did not fit was charged all the same, so the answer is that to a record.
	return jsontext.Value(appendReply(nil, engine.Record, &d, req.Cost)), nil
}

func decodeSettle(data []byte) (limits.SettleRequest, error) {
	req := limits.SettleRequest{Cost: -1}
	err := readFields(data, text("id", &req.ID, 1, limits.MaxIDBytes), number("cost", &req.Cost, 0, limits.MaxAmount))
	switch {
	case err != nil:
		return req, err
	case req.ID == "":
		return req, invalid("id", "id is missing; want the id of an earlier consume or verify")
	case req.Cost < 0:
		return req, invalid("cost", "cost is missing; want the final cost, 0 to %d", limits.MaxAmount)
	}
	return req, nil
}
