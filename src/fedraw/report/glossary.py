"""What each metric means, in a sentence."""

from __future__ import annotations

MEANING = {
    "GlobalAcc": "Accuracy of the global model on the whole test set.",
    "AvgRare": "Recall of the rare labels, averaged over them.",
    "MacroF1": "F1 score averaged over all labels, each counting the same.",
    "RareF1": "F1 score averaged over the rare labels.",
    "RareF2": "The same with recall counted twice as important as precision.",
    "Worst10": "Mean accuracy of the worst-served tenth of the clients, each on its own test data.",
    "LocalRare": "Mean accuracy of the clients that hold a rare label.",
    "LocalCommon": "Mean accuracy of the clients that hold none.",
    "MeanClient": "Mean accuracy over all clients.",
    "Jain": "Jain's fairness index of the clients' accuracies: 1 if all are served alike.",
    "BufPres": "Buffer presence: share of aggregations with a rare client in the buffer.",
    "RarePart": "Share of all arrivals that come from rare clients.",
    "RareMeanStale": "Mean staleness of a rare client's update, in events.",
    "RareMaxStale": "Largest staleness of a rare client's update, in events.",
}
