"""Files, sources and licences of the data sets that only the study uses."""

from __future__ import annotations

from setsquare.datasets import DataFile, DatasetInfo


def _mimic(split: str) -> tuple[DataFile, ...]:
    """Describe the table and the embeddings of one split of MIMIC-CXR; whoever has access makes them."""
    parts = {
        "meta.csv": "MIMIC-CXR-JPG and MIMIC-IV (age, sex, race, Pleural Effusion; a row for each image)",
        "emb.npy": "https://doi.org/10.13026/pxc2-vx69 (1376 numbers in single precision for each row of the table)",
    }
    origin = "it is made by those who have credentialed access to"
    return tuple(DataFile(f"mimic/mimic_cfm_{split}_{end}", "", f"{origin} {where}") for end, where in parts.items())


_ENTRIES = (
    DatasetInfo(
        name="colored_mnist",
        title="a handwritten 0 or 9, where red gives the 0 away in training and no test image is red",
        outcome="digit",
        protected=("red",),
        family="binomial",
        n_rows=13861,
        source="MNIST, LeCun, Cortes and Burges; coloured as in Rügamer et al. (2024)",
        licence="MNIST is under CC BY-SA 3.0",
        files=(
            DataFile(
                path="mnist/mnist_0_9.npz",
                sha256="20439de3581e5053071c4bc10b9c74ba74bdba0a34cef86c7d37dffd3b2b413b",
                origin="numpy.savez_compressed makes it from the 0s and 9s of MNIST in order, as bytes named x_train, "
                "y_train, x_test and y_test (load it with verify=False)",
            ),
        ),
    ),
    DatasetInfo(
        name="mimic_chest_xrays",
        title="pleural effusion in embeddings of the chest X-rays of MIMIC-CXR",
        outcome="Pleural Effusion",
        protected=("sex", "age", "race"),
        family="binomial",
        n_rows=184383,
        source="Sellergren et al. (2022), https://doi.org/10.13026/pxc2-vx69; labels of MIMIC-CXR-JPG and MIMIC-IV",
        licence="PhysioNet credentialed health data licence: never pass the data on",
        files=(*_mimic("train"), *_mimic("test")),
    ),
    DatasetInfo(
        name="movies",
        title="number of votes that a movie got, from its description",
        outcome="votes",
        protected=("actor", "director"),
        family="poisson",
        n_rows=42705,
        source='Kaggle "The Movies Dataset", from TMDB; words of Rügamer et al. (2024); embedded for this library',
        licence="terms of TMDB: never pass the data on",
        files=(
            DataFile(
                path="movies/movies_full.parquet",
                sha256="293db47c2a72c69b1550ffb8870c4dbb44901e38a0916bc28719147eeb372e19",
                origin="it holds cleaned descriptions, votes, genders and the paper's split of The Movies Dataset",
            ),
            DataFile(
                path="movies/authors_words.csv.gz",
                sha256="bb745387bb3229b2173dacd05509dbd49485a2aa06385230086ccb79a6511041",
                origin="it holds the authors' 10 000 words with their ranks, as word and id",
            ),
            DataFile(
                path="movies/movies_full_minilm_pca100.npz",
                sha256="b476f97e45e6f5651c60cb09763bb25dbfd9ad1a3a1d4007684c8bfbf0abe43c",
                origin="it holds 100 principal components of all-MiniLM-L6-v2, in half precision as emb",
            ),
        ),
    ),
    DatasetInfo(
        name="nih_chest_xrays",
        title="effusion in an embedding of chest X-rays, several images of a patient; stands in for MIMIC-CXR",
        outcome="Effusion",
        protected=("age", "sex"),
        family="binomial",
        n_rows=7060,
        source="NIH Clinical Center, ChestX-ray14, Wang et al. (2017); embedded for this library",
        licence="open, with attribution to the NIH Clinical Center",
        files=(
            DataFile(
                path="cxr/nih_subset_meta.parquet",
                sha256="2680ec99d1500960dc39be64d19017d4239eea6cbe9082616f68df87bc1b84b2",
                origin="it holds labels, patient and split of 7060 images of ChestX-ray14",
            ),
            DataFile(
                path="cxr/nih_subset_efficientnet_pca256.npz",
                sha256="b83094055a8f79bc57edfc1a0fd7ae7487d60e24b3a206e5379db2f6ea8161ef",
                origin="it holds 256 principal components of EfficientNet-lite0, in half precision as emb",
            ),
        ),
    ),
    DatasetInfo(
        name="utkface",
        title="sex in embeddings of faces, by face recognition and by ImageNet",
        outcome="sex",
        protected=("age", "race"),
        family="binomial",
        n_rows=20643,
        source="UTKFace, Zhang, Song and Qi (2017); embedded for this library",
        licence="non-commercial research only: never pass the data on",
        files=(
            DataFile(
                path="utkface/utkface_meta.parquet",
                sha256="da38c6908a78c665e0a4cbd5189e71ea884c36bc15f03d454c82878b7bb44405",
                origin="it holds the labels in the file names of UTKFace, and a split",
            ),
            DataFile(
                path="utkface/utkface_face128.npz",
                sha256="fc61744a3205a31bc96f15918630d16e961f4b247a0aa2161b663fdf9d11a1a2",
                origin="it holds 128 features of a face-recognition network, in half precision as emb",
            ),
            DataFile(
                path="utkface/utkface_efficientnet_pca128.npz",
                sha256="ac485d7bab19b3f91edf57c0d35fa56ba00d5f91849eda0c38533b5fd5772965",
                origin="it holds 128 principal components of EfficientNet-lite0 of the faces, in half precision as emb",
            ),
        ),
    ),
)

#: Every data set of the study by name.
REGISTRY: dict[str, DatasetInfo] = {entry.name: entry for entry in _ENTRIES}
