package diagnosticsv1alpha1

// TokenAudience is the audience of bearer tokens for the service. A token for this audience alone does not open the API
// server.
const TokenAudience = "ringquery"
