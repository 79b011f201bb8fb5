package limits_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/seed503877ad/limits"
)

// One call verifies the API key of a request and charges the limits of its user.
func ExampleClient_VerifyKey() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	made, err := client.CreateKey(ctx, limits.CreateKeyRequest{User: "7", Name: "web shop", Tier: "pro"})
	if err != nil {
		log.Fatal(err)
	}

	serve := func(apiKey, path string) {
		reply, err := client.VerifyKey(ctx, limits.VerifyRequest{APIKey: apiKey, Attributes: map[string]string{"path": path}})
		switch {
		case err != nil:
			fmt.Println(503, err) // the key cannot be verified
		case !reply.Valid:
			fmt.Println(401, reply.Code)
		case !reply.Allowed():
			fmt.Println(429, reply.Decision.Message)
		default:
			fmt.Println(200, reply.User, reply.Tier)
		}
	}
	serve(made.APIKey, "/v1/reports")
	serve("a guess", "/v1/reports")
	// Output:
	// 200 7 pro
	// 401 unknown
}

// The keys of a user are listed and revoked.
func ExampleClient_RevokeKey() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	for _, name := range []string{"laptop", "server"} {
		if _, err := client.CreateKey(ctx, limits.CreateKeyRequest{User: "leaving", Name: name}); err != nil {
			log.Fatal(err)
		}
	}

	page, err := client.ListKeys(ctx, limits.ListKeysRequest{User: "leaving"})
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range page.Keys {
		reply, err := client.RevokeKey(ctx, key.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Key.User, reply.Key.RevokedAt != 0)
	}
	// Output:
	// leaving true
	// leaving true
}

// A key is rotated: the old one stays valid for two more weeks.
func ExampleClient_ExpireKey() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	old, err := client.CreateKey(ctx, limits.CreateKeyRequest{User: "9"})
	if err != nil {
		log.Fatal(err)
	}

	end := time.Now().AddDate(0, 0, 14)
	reply, err := client.ExpireKey(ctx, old.Key.ID, end.UnixMilli())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(time.UnixMilli(reply.Key.ExpiresAt).Sub(end).Abs() < time.Millisecond)
	// Output: true
}

// An override raises the limit of one user for two hours.
func ExampleClient_SetOverride() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	id := limits.OverrideID{Policy: "api", Name: "minute", Subject: "api:user:7"}
	reply, err := client.SetOverride(ctx, limits.SetOverrideRequest{
		OverrideID: id, Limit: 500, ExpiresAt: time.Now().Add(2 * time.Hour).UnixMilli(), Reason: "import, ticket 4711",
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Override.Subject, reply.Override.Limit)

	page, err := client.ListOverrides(ctx, limits.ListOverridesRequest{Policy: "api"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(page.Overrides))
	deleted, err := client.DeleteOverride(ctx, id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(deleted.Deleted)
	// Output:
	// api:user:7 500
	// 1
	// true
}
