package channel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// webhook posts in the format of Standard Webhooks 1.0.0 (standardwebhooks.com).
type webhook struct {
	*target
	signers []*standardwebhooks.Webhook
}

func (m *Maker) webhook(spec *alerts.WebhookSpec) (alerts.Channel, error) {
	t, err := m.target(spec.URL)
	if err != nil {
		return nil, err
	}
	if len(spec.Secrets) == 0 {
		return nil, errors.New("secrets: a webhook needs at least one, so that its receiver can verify the sender")
	}
	w := &webhook{target: t}
	for i, secret := range spec.Secrets {
		if len(secret) == 0 {
			return nil, fmt.Errorf("secrets: number %d is empty", i+1)
		}
		signer, err := standardwebhooks.NewWebhookRaw(secret)
		if err != nil {
			return nil, fmt.Errorf("secrets: number %d is invalid", i+1)
		}
		w.signers = append(w.signers, signer)
	}
	return w, nil
}

// webhookBody is the body of a webhook.
type webhookBody struct {
	Type      alerts.Kind     `json:"type"`
	Timestamp time.Time       `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
}

// Send posts a message. The id and the body are the same on every attempt; the timestamp, and with it the signatures, are
// not.
func (w *webhook) Send(ctx context.Context, m *alerts.Message) error {
	body, err := json.Marshal(webhookBody{m.Kind, time.UnixMilli(m.Time).UTC(), m.Data})
	if err != nil {
		return &alerts.Refusal{Err: fmt.Errorf("write the message as JSON: %w", err), Final: true}
	}
	header, err := w.sign(m.ID, body)
	if err != nil {
		return err
	}
	_, err = w.post(ctx, header, body)
	return err
}

// sign returns the headers of a message, with a signature by each secret, the newest first.
func (w *webhook) sign(id string, body []byte) (http.Header, error) {
	now := w.maker.cfg.Now()
	signatures := make([]string, len(w.signers))
	for i, signer := range w.signers {
		var err error
		if signatures[i], err = signer.Sign(id, now, body); err != nil {
			return nil, fmt.Errorf("sign the message: %w", err)
		}
	}
	header := http.Header{}
	header.Set(standardwebhooks.HeaderWebhookID, id)
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return header, nil
}
