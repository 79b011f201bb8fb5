package httplimit

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// placeholders are the values of the placeholders in a template. nil is written as null in JSON and as nothing in text.
var placeholders = map[string]func(a *Answer) any{
	"status":     func(a *Answer) any { return a.Status },
	"title":      func(a *Answer) any { return title(a) },
	"message":    func(a *Answer) any { return message(a) },
	"wait":       func(a *Answer) any { return textOrNil(a.Wait()) },
	"retryAfter": func(a *Answer) any { return numberOrNil(a.RetryAfter()) },
	"name":       func(a *Answer) any { return textOrNil(a.top().Name) },
	"policy":     func(a *Answer) any { return textOrNil(a.top().Policy) },
	"window":     func(a *Answer) any { return textOrNil(a.top().Window) },
	"limit":      func(a *Answer) any { return numberOrNil(a.top().Limit, a.Reply != nil) },
	"current":    func(a *Answer) any { return numberOrNil(a.Current(), a.Reply != nil) },
	"remaining":  func(a *Answer) any { return numberOrNil(a.top().Remaining, a.Reply != nil) },
	"reset":      func(a *Answer) any { return numberOrNil(ceilSeconds(a.top().Reset), a.Reply != nil) },
	"resetAt":    func(a *Answer) any { return textOrNil(a.resetISO()) },
}

func numberOrNil(n int64, ok bool) any {
	if !ok {
		return nil
	}
	return n
}

func textOrNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func title(a *Answer) string {
	if a.exceeded() {
		return "Rate limit exceeded"
	}
	return failure(a)
}

func message(a *Answer) string {
	if a.exceeded() {
		return a.Reply.Message
	}
	return failure(a)
}

var (
	placeholder = regexp.MustCompile(`\{[^{}]*\}`)
	jsonString  = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

// JSONTemplate makes a body of a JSON text that has placeholders in its string values:
//
//	{"ok":false,"error":"{title}","retry_after":"{retryAfter}"}
//
// A string that consists of one placeholder is replaced by its value: a number, a string, or null if there is none. In a
// longer string the placeholder is replaced by text. Values are escaped, so that the body is always valid JSON. The
// placeholders are
//
//	status, title ("Rate limit exceeded"), message (the limiter's words), wait ("42 seconds"), retryAfter (seconds),
//	name, policy, window, limit, current, remaining, reset (Unix seconds), resetAt (ISO date)
func JSONTemplate(text string) (Body, error) {
	if !json.Valid([]byte(text)) {
		return nil, fmt.Errorf("template %q is not valid JSON", text)
	}
	for _, at := range jsonString.FindAllStringIndex(text, -1) {
		s := unescaped([]byte(text[at[0]:at[1]]))
		isName := strings.HasPrefix(strings.TrimLeft(text[at[1]:], " \t\r\n"), ":")
		if isName && placeholder.MatchString(s) {
			return nil, fmt.Errorf("template %q: there is a placeholder in the name %q; placeholders are allowed in values only", text, s)
		}
		if err := checkPlaceholders(s); err != nil {
			return nil, err
		}
	}
	return func(a *Answer) (string, []byte) {
		return "application/json", jsonString.ReplaceAllFunc([]byte(text), func(literal []byte) []byte {
			return expandJSON(literal, a)
		})
	}, nil
}

func expandJSON(literal []byte, a *Answer) []byte {
	s := unescaped(literal)
	var value any
	switch p := placeholder.FindString(s); p {
	case "":
		return literal
	case s:
		value = valueOf(p, a)
	default:
		value = expand(s, a)
	}
	b, _ := json.Marshal(value) // a number, a text or nil, which never fails
	return b
}

// unescaped parses a string literal of a valid JSON text. A brace may be written as \u007b.
func unescaped(literal []byte) (s string) {
	_ = json.Unmarshal(literal, &s)
	return s
}

// TextTemplate makes a body of plain text with the placeholders of [JSONTemplate], such as
// "Please wait {wait} before trying again.\n".
func TextTemplate(text string) (Body, error) {
	if err := checkPlaceholders(text); err != nil {
		return nil, err
	}
	return func(a *Answer) (string, []byte) { return "text/plain; charset=utf-8", []byte(expand(text, a)) }, nil
}

// Must returns the body of a template that is known to be valid, and panics otherwise:
//
//	Body: httplimit.Must(httplimit.JSONTemplate(`{"error":"{title}"}`))
func Must(body Body, err error) Body {
	if err != nil {
		panic("httplimit: " + err.Error())
	}
	return body
}

// checkPlaceholders returns an error for an unknown placeholder.
func checkPlaceholders(text string) error {
	for _, p := range placeholder.FindAllString(text, -1) {
		if _, ok := placeholders[placeholderName(p)]; !ok {
			return fmt.Errorf("template %q: unknown placeholder %s; want one of %s", text, p,
				strings.Join(slices.Sorted(maps.Keys(placeholders)), ", "))
		}
	}
	return nil
}

func expand(text string, a *Answer) string {
	return placeholder.ReplaceAllStringFunc(text, func(p string) string {
		if value := valueOf(p, a); value != nil {
			return fmt.Sprint(value)
		}
		return ""
	})
}

func valueOf(p string, a *Answer) any { return placeholders[placeholderName(p)](a) }

func placeholderName(p string) string { return p[1 : len(p)-1] }
