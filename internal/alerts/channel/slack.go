package channel

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/seed503877ad/limits/internal/alerts"
)

// slack posts to an incoming webhook as Slack, Mattermost and others take it.
type slack struct{ *target }

func (m *Maker) slack(spec *alerts.SlackSpec) (alerts.Channel, error) {
	t, err := m.target(spec.URL)
	return slack{t}, err
}

// maxSlackText is how many letters are sent; Slack advises 4000 at most.
const maxSlackText = 3000

// Send posts a message.
func (s slack) Send(ctx context.Context, m *alerts.Message) error {
	body, err := json.Marshal(struct {
		Text string `json:"text"`
	}{slackText(m)})
	if err != nil {
		return &alerts.Refusal{Err: fmt.Errorf("write the message as JSON: %w", err), Final: true}
	}
	answer, err := s.post(ctx, http.Header{}, body)
	if word := slackWord.Find(answer); err != nil && word != nil && !strings.Contains(s.url.String(), string(word)) {
		return annotated{err, string(word)}
	}
	return err
}

// slackWord is what Slack answers an error with, such as channel_not_found. Nothing else of an answer is told.
var slackWord = regexp.MustCompile(`^[a-z]+(_[a-z]+){1,5}$`)

// annotated says more of an error, and is still a refusal if that was one.
type annotated struct {
	error
	note string
}

func (a annotated) Error() string { return a.error.Error() + ": " + a.note }
func (a annotated) Unwrap() error { return a.error }

func slackText(m *alerts.Message) string {
	return slackEscape(firstRunes(fmt.Sprintf("[%s] %s\n%s", m.Severity, m.Title, m.Text), maxSlackText))
}

// slackEscapes are the three that Slack asks for; without them <!channel> or <url|words> in a key would take effect.
var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// mention is what may begin a mention, escaped or not. A list of names would have to know what each receiver takes for the end
// of one: for Mattermost @here_ is @here. Behind a letter or a digit stands a mail address, which is left as it is to be copied,
// but for the names of everybody, which some receivers find there too.
var mention = regexp.MustCompile(`(^|[^\pL\pN])@(\pL)|@((?i:all|channel|everyone|here))`)

// slackEscape keeps a text from being more than text. A space of no width parts a mention from its @.
func slackEscape(text string) string {
	return mention.ReplaceAllString(slackEscapes.Replace(text), "$1@\u200b$2$3")
}

// firstRunes bounds a text; an ellipsis stands for the rest.
func firstRunes(text string, n int) string {
	for i := range text {
		if n--; n < 0 {
			return text[:i] + "…"
		}
	}
	return text
}
