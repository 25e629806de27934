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
		Long: `noop-webhook is the floor for the cost of admission. It decodes each review with encoding/json into the Kubernetes types, and
always answers with the same JSON Patch. It serves TLS over HTTP/2 or HTTP/1.1 until it is interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			err := floor.Serve(c.Context(), o)
			if err == nil && errors.Is(context.Cause(c.Context()), commandline.ErrInterrupted) {
				return nil // the regular end
			}

			return err
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.Address, "bind-address", "127.0.0.1:9443", "`address` to listen on")
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "PEM `file` with the certificate (required)")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM `file` with its private key (required)")
	flags.StringVar(&o.Label, "label", "noop.example.com/shard", "`key` of the label")
	flags.StringVar(&o.Value, "value", "a", "`value` of the label")

	for _, required := range []string{"tls-cert-file", "tls-private-key-file"} {
		if err := c.MarkFlagRequired(required); err != nil {
			panic(err) // there is no such flag
		}
	}

	return c
}
