package command

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/load/internal/floor"
)

func newNoopWebhook() *cobra.Command {
	var o floor.Options
	c := &cobra.Command{
		Use:   "noop-webhook",
		Short: "Serve an admission webhook that adds a constant label",
		Long: `noop-webhook is the floor of what admission costs: it decodes each review with encoding/json into the types of Kubernetes, and
answers a JSON Patch that is always the same. It serves TLS, by HTTP/2 or HTTP/1.1, until it is interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			err := floor.Serve(c.Context(), o)
			if err == nil && errors.Is(context.Cause(c.Context()), commandline.ErrInterrupted) {
				return nil // that is how it ends
			}
			return err
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.Address, "bind-address", "127.0.0.1:9443", "`address` that serves the webhook")
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "PEM `file` of the certificate (required)")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM `file` of its private key (required)")
	flags.StringVar(&o.Label, "label", "noop.example.com/shard", "`key` of the label")
	flags.StringVar(&o.Value, "value", "a", "`value` of the label")
	for _, required := range []string{"tls-cert-file", "tls-private-key-file"} {
		if err := c.MarkFlagRequired(required); err != nil {
			panic(err) // there is no such flag
		}
	}
	return c
}
