package main

import (
	"fmt"

	"github.com/seed503877ad/limits"
)

// settleCmd sets the final cost of an earlier consume.
type settleCmd struct {
	clientFlags
	ID   string `arg:"" help:"The id of the consume or verify."`
	Cost int64  `required:"" placeholder:"N" help:"The final cost of the work; 0 for nothing."`
}

func (*settleCmd) Help() string {
	return `Examples:

  limiter consume jobs:acme --limit 1000 --window day --cost 50 --id job-17     # an estimate
  limiter settle job-17 --cost 12

What is missing is charged now, even past the limit; what was too much is given back to the window that was charged. The
exit status is 0 when it fitted and 3 when it went past the limit.`
}

func (c *settleCmd) Validate() error {
	if c.Cost < 0 {
		return fmt.Errorf("--cost: %d is below 0", c.Cost)
	}
	return c.clientFlags.Validate()
}

func (c *settleCmd) Run(s *session) error {
	var reply limits.Reply
	if err := c.ask(s, limits.SubjectSettle, limits.SettleRequest{ID: c.ID, Cost: c.Cost}, &reply); err != nil {
		return err
	}
	if !c.JSON {
		printDecision(s, limits.SubjectSettle, &reply, "")
	}
	if !reply.Allowed {
		return errDenied
	}
	return nil
}
